"""Which leading blocks of prompts each worker probably holds, learned from where prompts were sent.

One dictionary maps a block's key to the workers that hold it, as bits of an integer, so that a prompt is looked up
once for all workers. Each worker's blocks are ordered by their last use. A prompt's blocks are used last to first, so
that the tail of a chain always goes before its head, and what remains of a prompt is a prefix of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from .block_keys import BLOCK_BYTES, COARSE_BLOCK_BYTES, FINE_BLOCKS, bytes_of_blocks

MAX_BLOCKS: Final = 131_072
"""Of all workers together. One takes 250 to 300 bytes (measured by ``benchmarks/prefix_index.py``): at most 40 MB."""


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
        self._free_bits: list[int] = []

    def __len__(self) -> int:
        """Return the number of blocks remembered; one that two workers hold counts twice."""
        return sum(len(holdings.blocks) for holdings in self._workers.values())

    def matched_bytes(self, keys: Sequence[int], workers: Sequence[str]) -> list[int]:
        """Return how many leading bytes of the prompt with these keys each of the workers holds."""
        known = self._workers
        bits = [known[worker].bit if worker in known else 0 for worker in workers]
        wanted = 0
        for bit in bits:
            wanted |= bit
        matched = [0] * len(bits)
        if not wanted:
            return matched
        holders_of = self._holders.get
        holders = wanted
        for count, key in enumerate(keys):
            holding = holders_of(key, 0) & wanted
            if holding != holders:
                if count:
                    _credit(matched, bits, holders & ~holding, bytes_of_blocks(count))
                if not holding:
                    return matched
                holders = holding
        if keys:
            _credit(matched, bits, holders, bytes_of_blocks(len(keys)))
        return matched

    def insert(self, worker: str, keys: Sequence[int], *, bytes_per_token: float) -> None:
        """Note that a prompt was sent to a worker, which will have it in its cache.

        Takes time in proportion to the number of keys. What does not fit in the worker's capacity pushes out what was
        used longest ago.
        """
        if not keys:
            return
        holdings = self._workers.get(worker) or self._add(worker)
        blocks, bit, holders = holdings.blocks, holdings.bit, self._holders
        held = _leading(keys, blocks)
        if held < len(keys):
            fine_tokens = max(1, round(BLOCK_BYTES / bytes_per_token))
            coarse_tokens = max(1, round(COARSE_BLOCK_BYTES / bytes_per_token))
            for place in range(len(keys) - 1, held - 1, -1):
                key = keys[place]
                tokens = fine_tokens if place < FINE_BLOCKS else coarse_tokens
                blocks[key] = tokens
                holdings.tokens += tokens
                holders[key] = holders.get(key, 0) | bit
        use = blocks.move_to_end
        for key in reversed(keys[:held]):
            use(key)
        self._trim(holdings)

    def set_capacity(self, worker: str, capacity_tokens: int) -> None:
        """Say how large a worker's KV cache is."""
        holdings = self._workers.get(worker) or self._add(worker)
        holdings.capacity_tokens = capacity_tokens
        self._trim(holdings)

    def forget(self, worker: str) -> None:
        """Forget a worker and all that it holds: it has gone, or its cache is empty. Unknown workers are no error."""
        holdings = self._workers.pop(worker, None)
        if holdings is None:
            return
        for key in holdings.blocks:
            self._release(key, holdings.bit)
        self._free_bits.append(holdings.bit)

    def _add(self, worker: str) -> _Holdings:
        bit = self._free_bits.pop() if self._free_bits else 1 << len(self._workers)
        holdings = self._workers[worker] = _Holdings(bit, self._capacity_tokens)
        for other in self._workers.values():  # each worker's share of the memory has become smaller
            self._trim(other)
        return holdings

    def _trim(self, holdings: _Holdings) -> None:
        blocks = holdings.blocks
        share = self._max_blocks // len(self._workers)
        while len(blocks) > share or holdings.tokens > holdings.capacity_tokens:
            key, tokens = blocks.popitem(last=False)
            holdings.tokens -= tokens
            self._release(key, holdings.bit)

    def _release(self, key: int, bit: int) -> None:
        remaining = self._holders[key] & ~bit
        if remaining:
            self._holders[key] = remaining
        else:
            del self._holders[key]


def _credit(matched: list[int], bits: Sequence[int], holders: int, matched_bytes: int) -> None:
    for place, bit in enumerate(bits):
        if bit & holders:
            matched[place] = matched_bytes


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
