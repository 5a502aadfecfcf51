"""The decode worker's side of a hand-over: it fetches KV caches from prefill workers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from dolphin_sim.emulator.batch import Generation, Phase
from dolphin_sim.emulator.errors import KvLoadError
from dolphin_sim.emulator.ledger import Ledger, Pull
from dolphin_sim.emulator.pacer import Pacer
from dolphin_sim.engine.state import Settings

# The most time between two heartbeats, of a lease that may last for ever.
_LONGEST_HEARTBEAT_S = 60.0
_CLOSING_S = 5.0
# An event loop alone would let go of tasks that nobody waits for.
_closing: set[asyncio.Task[None]] = set()


@dataclass(frozen=True, kw_only=True)
class KvSource:
    """Where a KV cache is."""

    host: str
    """Empty for a KV cache that was pushed here."""
    port: int
    key: str
    engine_id: str | None = None
    """Of the prefill worker, where the protocol names it."""
    block_ids: tuple[int, ...] | None = None
    """As the prefill worker named them; None where the protocol does not."""
    waits_for_prefill: bool = False
    """Whether the prefill worker may not have computed it yet."""
    timeout_s: float
    """Simulated seconds after which the decode worker gives up."""

    @property
    def is_here(self) -> bool:
        """Whether it has only to be taken in."""
        return not self.host


class Borrower:
    """Fetches KV caches, with a fixed overhead each and bandwidth that transfers share at both ends.

    Args:
        pacer: the worker's time.
        settings: of the profile.
        ledger: where hand-overs are written down.
        loaded: called with the tokens of each that were moved and the simulated seconds it took.
    """

    def __init__(self, pacer: Pacer, settings: Settings, ledger: Ledger, loaded: Callable[[int, float], None]) -> None:
        self._pacer = pacer
        self._settings = settings
        self._ledger = ledger
        self._loaded = loaded
        self._transfers: dict[int, asyncio.Event] = {}

    async def fetch(
        self, source: KvSource, generation: Generation, room: asyncio.Event, *, prompt_digest: bytes
    ) -> None:
        """Bring the KV cache here and let the generation decode; cancelled, tell the prefill worker that it is not
        wanted.

        Args:
            source: where it is.
            generation: new on this worker.
            room: is set whenever the generation has changed.
            prompt_digest: of the prompt.

        Raises:
            KvLoadError: it cannot be had. The generation is then to be aborted.
        """
        began_s = self._pacer.now_s()
        pull = Pull(source.key)
        self._ledger.pulls.append(pull)
        if source.is_here:
            self._pacer.expect(generation)
            while generation.phase is Phase.ROOMLESS:
                room.clear()
                await room.wait()
            pull.tokens = generation.prompt_tokens - generation.computed_tokens
            pull.end = "loaded"
            self._loaded(pull.tokens, 0.0)
            self._pacer.receive(generation)
            return
        timeout_s = None if source.timeout_s == math.inf else self._pacer.wall_s(source.timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                async with _Claim.opened(source, self._pacer) as claim:
                    pull.was_asked_for = True
                    ready_s = self._pacer.now_s() - await claim.obtain(prompt_digest)
                    # The overhead stands for all between the end of the prefill and the transfer, also for what really
                    # passes between the two workers here.
                    await self._sleep_until(ready_s + self._settings.transfer_overhead_s)
                    self._pacer.expect(generation)
                    while generation.phase is Phase.ROOMLESS:
                        room.clear()
                        await claim.while_waiting(room)
                    pull.tokens = generation.prompt_tokens - generation.computed_tokens
                    await self._move(pull.tokens, claim)
                    claim.outcome = "pulled"
                    pull.end = "loaded"
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            # A time-out is an OSError too.
            pull.end = "failed"
            message = f"KV cache {source.key} at {source.host}:{source.port}: {error!r}"
            raise KvLoadError(message, is_mistake=False) from error
        except KvLoadError as error:
            pull.end = "failed"
            if error.is_mistake:
                self._ledger.errors.append(str(error))
            raise
        except asyncio.CancelledError:
            pull.end = "aborted"
            if not pull.was_asked_for and not source.waits_for_prefill:
                _in_background(self._tell_refused(source))
            raise
        self._loaded(pull.tokens, self._pacer.now_s() - began_s)
        self._pacer.receive(generation)

    async def refuse(self, source: KvSource) -> None:
        """Tell the prefill worker that a KV cache is not wanted; the lease runs out where that does not arrive."""
        self._ledger.pulls.append(Pull(source.key, end="aborted"))
        await self._tell_refused(source)

    async def _tell_refused(self, source: KvSource) -> None:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(source.host, source.port)
            writer.write(json.dumps({"end": "aborted", "key": source.key}).encode() + b"\n")
            writer.close()

    async def _sleep_until(self, simulated_s: float) -> None:
        remaining_s = self._pacer.wall_s(simulated_s - self._pacer.now_s())
        if remaining_s > 0.0:
            await asyncio.sleep(remaining_s)

    async def _move(self, tokens: int, claim: _Claim) -> None:
        changed = asyncio.Event()
        self._transfers[id(changed)] = changed
        claim.start(changed)
        self._tell_transfers()
        left_bytes = tokens * self._settings.kv_bytes_per_token
        at_s = self._pacer.now_s()
        try:
            while left_bytes > 0.0:
                rate = self._settings.link_bytes_per_s / max(len(self._transfers), claim.sharers, 1)
                changed.clear()
                # Not `wait_for`, which in Python 3.11 may swallow a cancellation that comes with the event.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pacer.wall_s(left_bytes / rate)):
                        await changed.wait()
                claim.check()
                now_s = self._pacer.now_s()
                left_bytes -= (now_s - at_s) * rate
                at_s = now_s
        finally:
            del self._transfers[id(changed)]
            self._tell_transfers()

    def _tell_transfers(self) -> None:
        for changed in self._transfers.values():
            changed.set()


class _Claim:
    """A connection to the prefill worker's side channel."""

    def __init__(
        self, source: KvSource, pacer: Pacer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._source = source
        self._pacer = pacer
        self._reader = reader
        self._writer = writer
        self._changed: asyncio.Event | None = None
        self._failure: Exception | None = None
        self._beating: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self.sharers = 1
        """Transfers that leave the prefill worker."""
        self.outcome = "aborted"
        """What becomes of the lease."""

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, source: KvSource, pacer: Pacer) -> AsyncIterator[_Claim]:
        """Connect, and say at the end what became of it."""
        reader, writer = await asyncio.open_connection(source.host, source.port)
        claim = cls(source, pacer, reader, writer)
        try:
            yield claim
        finally:
            if claim._listening is None and source.waits_for_prefill:
                # The prefill worker does not hear of it, as with the engines that wait so.
                writer.transport.abort()
            else:
                # Waited for, so that whoever sees the answer finds the lease ended.
                await asyncio.shield(_in_background(claim._close()))

    async def obtain(self, prompt_digest: bytes) -> float:
        """Return how many simulated seconds ago the KV cache was ready."""
        source = self._source
        self._send(
            claim=source.key,
            engine_id=source.engine_id,
            block_ids=None if source.block_ids is None else list(source.block_ids),
            digest=prompt_digest.hex(),
            wait=source.waits_for_prefill,
        )
        line = await self._reader.readline()
        if not line:
            raise ConnectionResetError("the prefill worker closed the connection")
        answer = json.loads(line)
        if "error" in answer:
            raise KvLoadError(answer["error"], is_mistake=answer["is_mistake"])
        heartbeat_s = self._pacer.wall_s(min(answer["lease_s"] / 3, _LONGEST_HEARTBEAT_S))
        self._beating = asyncio.create_task(self._beat(heartbeat_s))
        self._listening = asyncio.create_task(self._listen())
        return float(answer["age_s"])

    async def while_waiting(self, event: asyncio.Event) -> None:
        self._changed = event
        await event.wait()
        self.check()

    def start(self, changed: asyncio.Event) -> None:
        self._changed = changed
        self._send(start=True)

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _close(self) -> None:
        """Say what became of the lease, and hang up after the prefill worker has: a connection with something unread
        ends in a reset, which would overtake what was said."""
        if self._beating is not None:
            self._beating.cancel()
        self._send(end=self.outcome)
        listening = self._listening or asyncio.create_task(self._listen())
        await asyncio.wait({listening}, timeout=_CLOSING_S)
        listening.cancel()
        self._writer.close()

    async def _beat(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            self._send(heartbeat=True)

    async def _listen(self) -> None:
        try:
            while line := await self._reader.readline():
                self.sharers = json.loads(line).get("sharers", self.sharers)
                if self._changed is not None:
                    self._changed.set()
            self._failure = ConnectionResetError("the prefill worker closed the connection")
        except OSError as error:
            self._failure = error
        if self._changed is not None:
            self._changed.set()

    def _send(self, **message: object) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")


def _in_background(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.create_task(coroutine)
    _closing.add(task)
    task.add_done_callback(_closing.discard)
    return task
