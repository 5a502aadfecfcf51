"""What the engine asks its connector, and the answers of one that hands nothing over."""

from __future__ import annotations

from typing import Any

from starlette.routing import Route

from dolphin_sim.emulator.borrower import KvSource
from dolphin_sim.emulator.call import Call, Choice
from dolphin_sim.emulator.request_body import GenerationBody


class Connector:
    """A worker without hand-over: every prompt is computed where it came to."""

    always_sends_usage = False
    """Whether a stream ends with usage even when the client did not ask for it."""

    async def start(self) -> None:
        """Open what the protocol needs besides the engine's HTTP and side channel."""

    async def stop(self) -> None:
        """Close it."""

    def routes(self) -> list[Route]:
        """Return the paths that the worker serves for the protocol."""
        return []

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

    def abandoned(self, body: GenerationBody, request_id: str) -> KvSource | None:
        """Return whose KV cache is not fetched, because the call was refused or aborted, where that worker is told."""
        return None

    def waits_for_pickup(self, call: Call) -> bool:
        """Tell whether the answer comes only when the other worker has the KV cache."""
        return False

    def decode_parameters(self, choice: Choice) -> dict[str, Any] | None:
        """Return what an answer that was not kept says of hand-overs."""
        return None
