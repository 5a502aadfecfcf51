"""The prefill worker's side of a hand-over: it keeps KV caches for those that come for them."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field

from dolphin_sim.emulator.batch import Generation
from dolphin_sim.emulator.errors import KvLoadError
from dolphin_sim.emulator.ledger import Lease, LeaseEnd, Ledger
from dolphin_sim.emulator.pacer import Pacer

_BLOCK_IDS = 1 << 20


@dataclass
class _Loan:
    lease: Lease
    generation: Generation
    prompt_digest: bytes
    is_over: asyncio.Event = field(default_factory=asyncio.Event)


class Lender:
    """Leases by the keys under which they are asked for.

    Args:
        pacer: the worker's time.
        ledger: where leases are written down.
        engine_id: of this worker, new at every start.
        block_tokens: tokens of a block.
        lease_s: simulated seconds until a lease ends that nobody claims or renews; infinite for an engine that waits
            for ever.
    """

    def __init__(self, pacer: Pacer, ledger: Ledger, *, engine_id: str, block_tokens: int, lease_s: float) -> None:
        self._pacer = pacer
        self._ledger = ledger
        self._engine_id = engine_id
        self._block_tokens = block_tokens
        self._lease_s = lease_s
        self._loans: dict[str, _Loan] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._arrivals: dict[str, asyncio.Event] = {}
        self._next_block = 1
        self.expired_count = 0

    @property
    def lease_s(self) -> float:
        """Simulated seconds that a lease lasts."""
        return self._lease_s

    def age_s(self, lease: Lease) -> float:
        """Return the simulated seconds since the lease began."""
        return self._pacer.now_s() - lease.granted_s

    def lend(self, key: str, generation: Generation, prompt_digest: bytes) -> Lease:
        """Keep the KV cache of a generation that has ended. An open lease with the same key expires."""
        self.end(key, "expired")
        blocks = math.ceil(generation.prompt_tokens / self._block_tokens)
        block_ids = range(self._next_block, self._next_block + blocks)
        self._next_block = block_ids.stop if block_ids.stop < _BLOCK_IDS else 1
        now_s = self._pacer.now_s()
        lease = Lease(key, block_ids, generation.prompt_tokens, now_s, now_s + self._lease_s)
        self._ledger.leases.append(lease)
        self._loans[key] = _Loan(lease, generation, prompt_digest)
        self._wait_for_expiry(key)
        self._arrival(key).set()
        return lease

    def hold_for(self, key: str, tokens: int) -> Lease:
        """Write down a KV cache that another worker has pushed here; nothing but its use ends it."""
        lease = Lease(key, range(0), tokens, self._pacer.now_s(), math.inf)
        self._ledger.leases.append(lease)
        return lease

    def note(self, error: KvLoadError) -> KvLoadError:
        """Write down a mistake of the router's, and return it."""
        self._ledger.errors.append(str(error))
        return error

    async def available(self, key: str) -> None:
        """Wait until there is a lease with this key. It may never come."""
        if key not in self._loans:
            await self._arrival(key).wait()

    def claim(self, key: str, *, engine_id: str | None, block_ids: list[int] | None, prompt_digest: bytes) -> Lease:
        """Let a decode worker have the KV cache, once.

        Raises:
            KvLoadError: there is none with this key, it was claimed before, or what the decode worker says of it is not
                what it is.
        """
        if engine_id is not None and engine_id != self._engine_id:
            raise self.note(
                KvLoadError(f"KV cache {key} is asked for of engine {engine_id}, but this is {self._engine_id}")
            )
        loan = self._loans.get(key)
        if loan is None:
            earlier = [lease for lease in self._ledger.leases if lease.key == key]
            if earlier and earlier[-1].end == "dropped":
                raise KvLoadError(f"KV cache {key} was lost", is_mistake=False)
            state = f"its lease ended: {earlier[-1].end}" if earlier else "this worker never had it"
            raise self.note(KvLoadError(f"KV cache {key} is asked for, but {state}"))
        if loan.lease.claimed:
            raise self.note(KvLoadError(f"KV cache {key} is asked for a second time"))
        if block_ids is not None and block_ids != list(loan.lease.block_ids):
            raise self.note(KvLoadError(f"KV cache {key} is in blocks {loan.lease.block_ids}, not in {block_ids}"))
        if prompt_digest != loan.prompt_digest:
            raise self.note(KvLoadError(f"KV cache {key} is that of another prompt: the two legs differ"))
        loan.lease.claimed = True
        return loan.lease

    async def ended(self, key: str) -> None:
        """Wait until the lease with this key has ended."""
        loan = self._loans.get(key)
        if loan is not None:
            await loan.is_over.wait()

    def renew(self, key: str) -> None:
        """Let the lease last its full time from now: the decode worker still means to have it."""
        loan = self._loans.get(key)
        if loan is not None:
            loan.lease.expires_s = self._pacer.now_s() + self._lease_s
            self._wait_for_expiry(key)

    def end(self, key: str, end: LeaseEnd) -> None:
        """End a lease, if it is open, and free its memory."""
        loan = self._loans.pop(key, None)
        if loan is None:
            return
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        loan.lease.end = end
        self._arrivals.pop(key, None)
        self._pacer.release_kept(loan.generation)
        loan.is_over.set()

    def end_all(self, end: LeaseEnd) -> None:
        """End every open lease."""
        for key in list(self._loans):
            self.end(key, end)

    def stop(self) -> None:
        """Let no more leases expire."""
        for timer in self._timers.values():
            timer.cancel()

    def _arrival(self, key: str) -> asyncio.Event:
        return self._arrivals.setdefault(key, asyncio.Event())

    def _wait_for_expiry(self, key: str) -> None:
        if self._lease_s == math.inf:
            return
        timer = self._timers.get(key)
        if timer is not None:
            timer.cancel()
        wall_s = self._pacer.wall_s(self._lease_s)
        self._timers[key] = asyncio.get_running_loop().call_later(wall_s, self._expire, key)

    def _expire(self, key: str) -> None:
        self.expired_count += 1
        self.end(key, "expired")
