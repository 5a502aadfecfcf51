"""Which leading blocks of prompts each worker probably holds, learned from where prompts were sent.

One dictionary maps a block's key to the workers that hold it, as bits of an integer, so that a prompt is looked up
once for all workers. Each worker's blocks are ordered by their last use. A prompt's blocks are used last to first, so
that the tail of a chain always goes before its head, and what remains of a prompt is a prefix of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from dolphin_router.worker_bits import BitPool, credit

from .block_keys import (
    BLOCK_BYTES,
    COARSE_BLOCK_BYTES,
    COARSE_BLOCKS,
    FINE_BLOCKS,
    LONG_BLOCK_BYTES,
    bytes_of_blocks,
)

MAX_BLOCKS: Final = 131_072
"""Of all workers together. One takes about 175 bytes (measured by ``benchmarks/prefix_index.py``): at most 23 MB."""

_LONG_PLACE: Final = FINE_BLOCKS + COARSE_BLOCKS


class _Holdings:
    """The blocks of one worker, the one used longest ago first, each with its length in tokens."""

    __slots__ = ("bit", "blocks", "capacity_tokens", "tokens")

    def __init__(self, bit: int, capacity_tokens: int) -> None:
        self.bit = bit
        self.blocks: OrderedDict[int, int] = OrderedDict()
        self.capacity_tokens = capacity_tokens
        self.tokens = 0


class PrefixIndex:
    """The router's guess of every worker's prefix cache."""

    def __init__(self, *, capacity_tokens: int, max_blocks: int = MAX_BLOCKS) -> None:
        """Start with nothing known.

        Args:
            capacity_tokens: how much KV cache a worker has, unless :meth:`set_capacity` says otherwise.
            max_blocks: how many blocks are remembered, over all workers; every worker gets an equal share.
        """
        self._capacity_tokens = capacity_tokens
        self._max_blocks = max_blocks
        self._workers: dict[str, _Holdings] = {}
        self._holders: dict[int, int] = {}
        self._bits = BitPool()

    def __len__(self) -> int:
        """Return the number of blocks remembered; one that two workers hold counts twice."""
        return sum(len(holdings.blocks) for holdings in self._workers.values())

    def matched_bytes(self, keys: Sequence[int], workers: Sequence[str]) -> list[int]:
        """Return how many leading bytes of the prompt with these keys each of the workers holds."""
        known = self._workers
        bits = [known[worker].bit if worker in known else 0 for worker in workers]
        holders = 0
        for bit in bits:
            holders |= bit
        if not holders:
            return [0] * len(bits)
        matched: dict[int, int] = {}
        holders_of = self._holders.get
        count = 0
        for key in keys:
            holding = holders_of(key, 0) & holders
            if holding != holders:
                credit(matched, holders & ~holding, bytes_of_blocks(count))
                holders = holding
                if not holding:
                    break
            count += 1
        credit(matched, holders, bytes_of_blocks(count))
        return [matched.get(bit, 0) for bit in bits]

    def insert(self, worker: str, keys: Sequence[int], *, bytes_per_token: float) -> None:
        """Note that a prompt was sent to a worker, which will have it in its cache.

        Takes time in proportion to the number of keys. What does not fit in the worker's capacity pushes out what was
        used longest ago.
        """
        if not keys:
            return
        holdings = self._workers.get(worker) or self._add(worker)
        blocks, bit, holders = holdings.blocks, holdings.bit, self._holders
        holders_of = holders.get
        held = _leading(keys, blocks)
        if held < len(keys):
            for new, block_bytes in (
                (keys[max(held, _LONG_PLACE) :], LONG_BLOCK_BYTES),
                (keys[max(held, FINE_BLOCKS) : _LONG_PLACE], COARSE_BLOCK_BYTES),
                (keys[held:FINE_BLOCKS], BLOCK_BYTES),
            ):
                if not new:
                    continue
                tokens = max(1, round(block_bytes / bytes_per_token))
                for key in reversed(new):
                    blocks[key] = tokens
                    holders[key] = holders_of(key, 0) | bit
                holdings.tokens += tokens * len(new)
        use = blocks.move_to_end
        for key in reversed(keys[:held]):
            use(key)
        self._trim(holdings)

    def set_capacity(self, worker: str, capacity_tokens: int) -> None:
        """Say how large a worker's KV cache is."""
        holdings = self._workers.get(worker) or self._add(worker)
        holdings.capacity_tokens = capacity_tokens
        self._trim(holdings)

    def empty(self, worker: str) -> None:
        """Note that a worker's cache is empty: its engine has started anew. Unknown workers are no error."""
        holdings = self._workers.get(worker)
        if holdings is not None:
            self._evict(holdings, down_to_blocks=0, down_to_tokens=0)

    def forget(self, worker: str) -> None:
        """Forget a worker that has gone, its capacity included. Unknown workers are no error."""
        self.empty(worker)
        holdings = self._workers.pop(worker, None)
        if holdings is not None:
            self._bits.give_back(holdings.bit)

    def _add(self, worker: str) -> _Holdings:
        holdings = self._workers[worker] = _Holdings(self._bits.take(), self._capacity_tokens)
        for other in self._workers.values():  # each worker's share of the memory has become smaller
            self._trim(other)
        return holdings

    def _trim(self, holdings: _Holdings) -> None:
        share = self._max_blocks // len(self._workers)
        self._evict(holdings, down_to_blocks=share, down_to_tokens=holdings.capacity_tokens)

    def _evict(self, holdings: _Holdings, *, down_to_blocks: int, down_to_tokens: int) -> None:
        blocks, kept, holders = holdings.blocks, ~holdings.bit, self._holders
        while len(blocks) > down_to_blocks or holdings.tokens > down_to_tokens:
            key, tokens = blocks.popitem(last=False)
            holdings.tokens -= tokens
            if remaining := holders[key] & kept:
                holders[key] = remaining
            else:
                del holders[key]


def _leading(keys: Sequence[int], blocks: OrderedDict[int, int]) -> int:
    """Return how many leading keys are among the blocks. They hold whole prefixes, so the last one held tells."""
    if keys[-1] in blocks:
        return len(keys)
    low, high = 0, len(keys) - 1
    while low < high:
        middle = (low + high) // 2
        if keys[middle] in blocks:
            low = middle + 1
        else:
            high = middle
    return low
