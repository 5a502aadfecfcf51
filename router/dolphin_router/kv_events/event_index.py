"""What each worker holds, exactly: kept up to date by the events of its engine.

The engine's hashes are never computed here. Every block gets a key of our own, chained over token ids, and each worker
has a map from the engine's hash to our key, for removals and for finding a block's parent (llm-d's dual-key design).
The keys lead to the workers that hold them, as bits of an integer, so that a prompt is looked up once for all workers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Final

from dolphin_router.worker_bits import BitPool, credit

from .counters import EventCounters
from .decoding import (
    AllBlocksCleared,
    Batch,
    BlockHash,
    BlockRemoved,
    BlockStored,
    BlockTransferred,
    Event,
    Malformed,
    salt_as_extra_key,
)
from .worker_blocks import LEAST_BLOCK_TOKENS, Page, WorkerBlocks

SPECULATIVE_S: Final = 2.0
"""How long a prompt counts as held by the worker that it was sent to, unless events say so (llm-d's figure)."""
MAX_BLOCKS_PER_WORKER: Final = 131_072
"""Two million tokens in blocks of 16. Measured by ``benchmarks/prefix_index.py``: 150 to 200 bytes a block."""

_PREFIX_KINDS: Final = frozenset({None, "full_attention", "mla_attention"})
"""Layers that need every block of a prefix. A sliding window or a state needs only its end, and says nothing of it."""
_GPU: Final = "GPU"


class EventIndex:
    """The prefix caches of all workers that publish events. One thread only; nothing here waits."""

    def __init__(
        self, *, speculative_s: float = SPECULATIVE_S, max_blocks_per_worker: int = MAX_BLOCKS_PER_WORKER
    ) -> None:
        self.counters = EventCounters()
        self.on_emptied: Callable[[str], None] | None = None
        """Called with a worker's name when its engine has lost all that it held, whoever else keeps account of it."""
        self._speculative_s = speculative_s
        self._max_blocks = max_blocks_per_worker
        self._workers: dict[str, WorkerBlocks] = {}
        self._holders: dict[int, int] = {}
        self._bits = BitPool()
        self._adapters: set[str | int] = set()

    # What the subscribers say

    def watch(self, worker: str) -> None:
        """Begin to keep account of a worker. It publishes nothing until its first message arrives."""
        if worker not in self._workers:
            self._workers[worker] = WorkerBlocks(self._bits.take())

    def unwatch(self, worker: str) -> None:
        """Drop a worker that has gone. Unknown workers are no error."""
        state = self._workers.get(worker)
        if state is not None:
            self._empty(state)
            self._bits.give_back(state.bit)
            del self._workers[worker]

    def apply(self, worker: str, content: Batch | Malformed) -> None:
        """Take in the next message of a watched worker.

        What cannot be read is counted. If it may have said that blocks are gone, the worker is forgotten: to know
        nothing costs a prefill, to rely on blocks that are gone costs it at the wrong worker.
        """
        state = self._workers[worker]
        state.messages += 1
        counters = self.counters
        counters.messages += 1
        events: Sequence[Event] = (content,) if isinstance(content, Malformed) else content.events
        for event in events:
            if isinstance(event, BlockStored):
                self._store(state, event)
            elif isinstance(event, BlockRemoved):
                for block_hash in event.block_hashes:
                    self._remove_copy(state, block_hash, event.medium)
            elif isinstance(event, BlockTransferred):
                for block_hash in event.block_hashes:
                    if block_hash in state.keys:
                        self._add_copy(state, block_hash, event.to_medium)
                        self._remove_copy(state, block_hash, event.from_medium)
            elif isinstance(event, AllBlocksCleared):
                self._clear(state, event.medium)
                if event.medium is None and self.on_emptied is not None:
                    self.on_emptied(worker)
            else:
                counters.decode_errors += 1
                if event.may_remove:
                    self.forget(worker)
                continue
            counters.events += 1

    def forget(self, worker: str) -> None:
        """Give up all knowledge of a worker's cache, since messages were lost."""
        state = self._workers.get(worker)
        if state is not None:
            self.counters.forgets += 1
            self._empty(state)
            state.complete = False

    def restarted(self, worker: str) -> None:
        """Note that a worker's engine has started anew, with nothing in its cache."""
        self.counters.restarts += 1
        self.forget(worker)
        if self.on_emptied is not None:
            self.on_emptied(worker)

    def begin(self, worker: str) -> None:
        """Note that from here on every message of the engine's life has been seen."""
        self._workers[worker].complete = True

    # What routing asks

    def publishes(self, worker: str) -> bool:
        """Return whether any message came from this worker."""
        state = self._workers.get(worker)
        return state is not None and state.messages > 0

    def is_complete(self, worker: str, *, salted: bool = False) -> bool:
        """Return whether all that this worker holds is known: no message of its engine was missed.

        Args:
            worker: its name.
            salted: whether the question is for a request with a cache salt. Older engines do not tell the salts.
        """
        state = self._workers.get(worker)
        return state is not None and state.complete and (state.salts_known or not salted)

    def without_events(self) -> list[str]:
        """Return the watched workers from which nothing has come. Their caches look empty, whatever they hold."""
        return [worker for worker, state in self._workers.items() if not state.messages]

    def blocks(self, worker: str) -> int:
        """Return how many of the engine's blocks this worker is known to hold."""
        state = self._workers.get(worker)
        return 0 if state is None else len(state.keys)

    def matched_tokens(
        self,
        token_ids: Sequence[int],
        workers: Sequence[str],
        *,
        now_s: float,
        model: str | None = None,
        cache_salt: str | None = None,
    ) -> list[int]:
        """Return how many leading tokens of the prompt each of the workers holds; zero for those not watched.

        Args:
            token_ids: the prompt; a tuple is quickest.
            workers: their names.
            now_s: the event loop's time, in seconds.
            model: as the request names it; the name of an adapter that events told of stands for that adapter.
            cache_salt: the request's, if any.
        """
        tokens = tuple(token_ids)
        bits = []
        holders: dict[int, int] = {}
        for worker in workers:
            state = self._workers.get(worker)
            if state is None:
                bits.append(0)
                continue
            if state.queue:
                self._expire(state, now_s)
            bits.append(state.bit)
            holders[state.block_tokens] = holders.get(state.block_tokens, 0) | state.bit
        key = self._root(model)
        if cache_salt is not None:
            key = hash((key, salt_as_extra_key(cache_salt)))
        found: dict[int, int] = {}
        for block_tokens, members in holders.items():
            self._match(found, members, tokens, block_tokens=block_tokens, key=key)
        return [found.get(bit, 0) for bit in bits]

    def expect(
        self,
        worker: str,
        token_ids: Sequence[int],
        *,
        now_s: float,
        model: str | None = None,
        cache_salt: str | None = None,
    ) -> None:
        """Count a prompt as held by the worker that it was just sent to, until its events say so or time is up."""
        state = self._workers.get(worker)
        if state is None or not state.messages:
            return
        self._expire(state, now_s)
        until_s = now_s + self._speculative_s
        key = self._root(model)
        if cache_salt is not None:
            key = hash((key, salt_as_extra_key(cache_salt)))
        tokens, size = tuple(token_ids), state.block_tokens
        expected, holders, bit = state.expected, self._holders, state.bit
        fresh = []
        for start in range(0, len(tokens) - size + 1, size):
            key = hash((key, tokens[start : start + size]))
            if key in expected or not holders.get(key, 0) & bit:
                expected[key] = until_s
                holders[key] = holders.get(key, 0) | bit
                fresh.append(key)
        if fresh:
            state.queue.append((until_s, tuple(fresh)))

    # Keys

    def _root(self, model: str | int | None) -> int:
        return hash(("adapter", model)) if model in self._adapters else hash(("base",))

    def _match(
        self, found: dict[int, int], holders: int, tokens: tuple[int, ...], *, block_tokens: int, key: int
    ) -> None:
        holders_of = self._holders.get
        for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
            key = hash((key, tokens[start : start + block_tokens]))
            holding = holders_of(key, 0) & holders
            if holding != holders:
                credit(found, holders & ~holding, start)
                holders = holding
                if not holding:
                    return
        credit(found, holders, len(tokens) - len(tokens) % block_tokens)

    # Blocks

    def _store(self, state: WorkerBlocks, event: BlockStored) -> None:
        if event.spec_kind not in _PREFIX_KINDS:
            return
        if event.extra_keys:
            state.salts_known = True
        keys, hashes = state.keys, event.block_hashes
        if not event.token_ids:
            for block_hash in hashes:
                if block_hash in keys:
                    self._add_copy(state, block_hash, event.medium)
                else:
                    self.counters.unplaced_blocks += 1
            return
        size = event.block_size
        if not state.block_size:
            state.block_size = size
            state.block_tokens = size * -(-LEAST_BLOCK_TOKENS // size)
        if event.lora is not None:
            self._adapters.add(event.lora)
        parent = event.parent_block_hash
        before = self._root(event.lora) if parent is None else keys.get(parent)
        if before is None or size != state.block_size:
            self.counters.unplaced_blocks += len(hashes)
            return
        run, end = event.token_ids, 0
        if isinstance(before, Page):
            key, run, end = before.key, before.tokens + run, before.length
        else:
            key = before
        length = end
        for place, block_hash in enumerate(hashes):
            end += size
            known = keys.get(block_hash)
            if known is not None:
                self._add_copy(state, block_hash, event.medium)
                key, length = (known.key, known.length) if isinstance(known, Page) else (known, 0)
                continue
            if len(keys) >= self._max_blocks:
                self.counters.unplaced_blocks += len(hashes) - place
                return
            if event.extra_keys and (extra := event.extra_keys[place]) is not None:
                key = hash((key, extra))
            length += size
            if length < state.block_tokens:
                keys[block_hash] = Page(key, run, end, length)
            else:
                key = keys[block_hash] = hash((key, run[end - length : end]))
                length = 0
                self._holders[key] = self._holders.get(key, 0) | state.bit
                state.expected.pop(key, None)
            if event.medium != _GPU:
                state.copies[block_hash] = {sys.intern(event.medium): 1}

    def _add_copy(self, state: WorkerBlocks, block_hash: BlockHash, medium: str) -> None:
        copies = state.copies.setdefault(block_hash, {_GPU: 1})
        copies[sys.intern(medium)] = copies.get(medium, 0) + 1

    def _remove_copy(self, state: WorkerBlocks, block_hash: BlockHash, medium: str) -> None:
        """Take away one copy. Engines hold a block more than once, for instance when two requests computed it."""
        if block_hash not in state.keys:
            return
        copies = state.copies.get(block_hash)
        if copies is not None:
            if medium not in copies:  # rather one copy too few than one that stays for ever
                medium = next(iter(copies))
            copies[medium] -= 1
            if not copies[medium]:
                del copies[medium]
            if copies == {_GPU: 1}:
                del state.copies[block_hash]
        if not copies:
            state.copies.pop(block_hash, None)
            self._drop(state, state.keys.pop(block_hash))

    def _clear(self, state: WorkerBlocks, medium: str | None) -> None:
        if medium is None:
            self._empty(state)
            state.complete = True  # whatever was missed before is gone as well
            return
        for block_hash in list(state.keys):
            for _ in range(state.copies.get(block_hash, {_GPU: 1}).get(medium, 0)):
                self._remove_copy(state, block_hash, medium)

    def _drop(self, state: WorkerBlocks, key: int | Page) -> None:
        if isinstance(key, Page):
            return
        state.expected.pop(key, None)
        remaining = self._holders.get(key, 0) & ~state.bit
        if remaining:
            self._holders[key] = remaining
        else:
            self._holders.pop(key, None)

    def _expire(self, state: WorkerBlocks, now_s: float) -> None:
        queue, expected = state.queue, state.expected
        while queue and queue[0][0] <= now_s:
            until_s, keys = queue.popleft()
            for key in keys:
                if expected.get(key) == until_s:
                    self._drop(state, key)

    def _empty(self, state: WorkerBlocks) -> None:
        for key in (*state.keys.values(), *state.expected):
            self._drop(state, key)
        state.keys.clear()
        state.copies.clear()
        state.expected.clear()
        state.queue.clear()
        state.block_size = 0
