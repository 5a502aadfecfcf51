"""What is known of one worker's prefix cache."""

from __future__ import annotations

from collections import deque
from typing import Final

from .decoding import BlockHash

LEAST_BLOCK_TOKENS: Final = 16
"""Our blocks are the engine's, or as many of them as make up this many tokens: SGLang's may be a single token."""


class Page:
    """A block of the engine's that ends inside one of ours.

    Ours counts as held while the engine's block at its end is: engines let go of a prompt's end first.
    """

    __slots__ = ("_end", "_run", "key", "length")

    def __init__(self, key: int, run: tuple[int, ...], end: int, length: int) -> None:
        """Take the tokens from a run that many pages share."""
        self.key = key
        """Of the last block of ours before it."""
        self.length = length
        """From there to its end, in tokens."""
        self._run = run
        self._end = end

    @property
    def tokens(self) -> tuple[int, ...]:
        """From the last block of ours before it to its end."""
        return self._run[self._end - self.length : self._end]


class WorkerBlocks:
    """What is known of one worker."""

    __slots__ = (
        "bit",
        "block_size",
        "block_tokens",
        "complete",
        "copies",
        "expected",
        "keys",
        "messages",
        "queue",
        "salts_known",
    )

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.complete = False
        self.messages = 0
        self.keys: dict[BlockHash, int | Page] = {}
        self.copies: dict[BlockHash, dict[str, int]] = {}
        """How often each medium has the blocks that are held otherwise than once on the GPU."""
        self.expected: dict[int, float] = {}
        """Keys of speculative blocks, and until when they count."""
        self.queue: deque[tuple[float, tuple[int, ...]]] = deque()
        self.block_size = 0
        """The engine's; zero before the first block is stored."""
        self.block_tokens = LEAST_BLOCK_TOKENS
        """Ours."""
        self.salts_known = False
