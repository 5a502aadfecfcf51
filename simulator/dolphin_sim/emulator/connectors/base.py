"""What the engine asks its connector, and the answers of one that hands nothing over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.routing import Route

from dolphin_sim.emulator.borrower import KvSource
from dolphin_sim.emulator.call import Call, Choice, Run
from dolphin_sim.emulator.ledger import Lease
from dolphin_sim.emulator.lender import Lender
from dolphin_sim.emulator.options import WorkerOptions
from dolphin_sim.emulator.pacer import Pacer
from dolphin_sim.emulator.request_body import GenerationBody
from dolphin_sim.emulator.side_channel import SideChannel


@dataclass(frozen=True)
class Parts:
    """Of the engine, what a connector works with."""

    options: WorkerOptions
    engine_id: str
    pacer: Pacer
    lender: Lender
    side_channel: SideChannel
    runs: set[Run]
    """Those under way."""


class Connector:
    """A worker without hand-over: every prompt is computed where it came to."""

    always_sends_usage = False
    """Whether a stream ends with usage even when the client did not ask for it."""
    parks_aborted = False
    """Whether the KV cache of an aborted request is kept like that of any other."""
    hangs_on_lost_kv = False
    """Whether a request waits for ever for a KV cache that cannot be had, instead of failing."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    @property
    def bootstrap_port(self) -> int | None:
        """Where decode workers or routers ask before a hand-over; None where they do not."""
        return None

    async def start(self) -> None:
        """Open what the protocol needs besides the engine's HTTP and side channel."""

    async def stop(self) -> None:
        """Close it."""

    def routes(self) -> list[Route]:
        """Return the paths that the worker serves for the protocol."""
        return []

    def has_preparation(self, call: Call) -> bool:
        """Tell whether :meth:`prepare` has something to do."""
        return False

    async def prepare(self, call: Call) -> Call:
        """Do what comes before the engine sees the call; cancelled when the client leaves.

        Raises:
            ApiError: to be answered instead.
        """
        return call

    def check(self, call: Call) -> None:
        """Refuse calls that the protocol does not allow.

        Raises:
            ApiError: with the engine's words.
        """

    def most_tokens(self, call: Call) -> int | None:
        """Return where an answer ends at the latest, whatever the client asks for."""
        return None

    def keeps_kv(self, call: Call) -> bool:
        """Tell whether the prompt's KV cache is kept for another worker."""
        return False

    def is_remote(self, call: Call) -> bool:
        """Tell whether the prompt's KV cache is on another worker."""
        return False

    async def source(self, choice: Choice) -> KvSource | None:
        """Return where a choice's KV cache is; None when it is to be computed after those that are fetched.

        Raises:
            KvLoadError: the call does not say.
        """
        return None

    def kept(self, choice: Choice) -> dict[str, Any] | None:
        """Lend the KV cache of a choice whose prefill has ended, or release it; return what the answer says of it."""
        return None

    def lend(self, key: str, choice: Choice) -> Lease:
        """Lend the KV cache of a choice under a key."""
        assert choice.generation is not None
        return self.parts.lender.lend(key, choice.generation, choice.digest)

    def abandoned(self, body: GenerationBody, request_id: str) -> KvSource | None:
        """Return whose KV cache is not fetched, because the call was refused or aborted, where that worker is told."""
        return None

    def aborted(self, run: Run) -> None:
        """Take notice that a run is over, by its end or because the client left."""

    async def settled(self, run: Run) -> None:
        """Wait for what must have happened besides the last token before the answer may end."""

    def decode_parameters(self, choice: Choice) -> dict[str, Any] | None:
        """Return what an answer that was not kept says of hand-overs."""
        return None

    def finish_reason(self, call: Call, reason: str) -> str:
        """Return the engine's name for the end of an answer."""
        return reason
