"""One worker's KV memory, as plain objects: shared prefix blocks and tokens that one request has for itself.

The same accounting as :mod:`dolphin_sim.engine.memory`, which works on arrays for all workers at once; the tests hold
the two equal. What that one has no need of: a listener that hears which blocks come and go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from dolphin_sim.engine.state import Settings

# A block is known by a number that stands for its tokens and all before them.
BlockKey = int


class CacheListener(Protocol):
    """Is told what happens in the prefix cache."""

    def stored(self, parent: BlockKey | None, blocks: Sequence[BlockKey], tokens: Sequence[int]) -> None:
        """Consecutive blocks came after ``parent`` (None: at a prompt's beginning) and hold these tokens."""

    def removed(self, block: BlockKey) -> None:
        """A block was evicted."""

    def cleared(self) -> None:
        """All blocks are gone."""


class Holding:
    """What one request holds on the worker.

    Args:
        blocks: the prompt's complete blocks.
        tokens: the prompt, for the listener; may be empty when there is none.
    """

    __slots__ = ("blocks", "held_blocks", "private_tokens", "tokens")

    def __init__(self, blocks: Sequence[BlockKey], tokens: Sequence[int] = ()) -> None:
        self.blocks = blocks
        self.tokens = tokens
        self.held_blocks = 0
        """Leading blocks that it holds a reference on."""
        self.private_tokens = 0


class KvMemory:
    """Least recently used blocks without references are evicted first, a chain from its end."""

    def __init__(self, settings: Settings, listener: CacheListener | None = None) -> None:
        self._settings = settings
        self._block_tokens = settings.block_tokens
        self._references: dict[BlockKey, int] = {}
        self._idle: OrderedDict[BlockKey, None] = OrderedDict()
        self._host: OrderedDict[BlockKey, None] = OrderedDict()
        self._private_tokens = 0
        self.listener = listener

    @property
    def free_tokens(self) -> int:
        """Tokens that can be had, counting what may be evicted."""
        pinned_blocks = len(self._references) - len(self._idle)
        return self._settings.kv_capacity_tokens - self._private_tokens - pinned_blocks * self._block_tokens

    @property
    def used_share(self) -> float:
        """Share of the memory that requests hold, from 0 to 1."""
        return 1.0 - self.free_tokens / self._settings.kv_capacity_tokens

    def take(self, holding: Holding, tokens: int) -> None:
        """Give the request private tokens, evicting as needed. :attr:`free_tokens` must allow it."""
        holding.private_tokens += tokens
        self._private_tokens += tokens
        used = self._private_tokens + len(self._references) * self._block_tokens
        while used > self._settings.kv_capacity_tokens:
            block, _ = self._idle.popitem(last=False)
            del self._references[block]
            if self._settings.host_blocks > 0:
                self._remember(block)
            if self.listener is not None:
                self.listener.removed(block)
            used -= self._block_tokens

    def admit(self, holding: Holding, target_tokens: int) -> tuple[int, float] | None:
        """Reserve memory for ``target_tokens`` and take what is cached.

        Returns the tokens that need not be computed and the seconds to read some of them back from the host tier; None,
        with nothing changed, when there is no room.
        """
        if target_tokens > self.free_tokens and not self._fits_with_shared_blocks(holding, target_tokens):
            return None
        blocks = holding.blocks
        held = 0
        while held < len(blocks) and blocks[held] in self._references:
            self._hold(blocks[held])
            held += 1
        holding.held_blocks = held
        loaded = 0
        while held + loaded < len(blocks) and blocks[held + loaded] in self._host:
            loaded += 1
        self.take(holding, target_tokens - held * self._block_tokens)
        available = (held + loaded) * self._block_tokens
        self.share(holding, available)
        # An engine computes at least the last token, since it needs that token's output.
        reused_tokens = min(available, target_tokens - 1)
        return reused_tokens, loaded * self._block_tokens * self._settings.host_s_per_token

    def share(self, holding: Holding, computed_tokens: int) -> None:
        """Put the blocks that are complete with ``computed_tokens`` into the cache, out of the private tokens."""
        complete = min(computed_tokens // self._block_tokens, len(holding.blocks))
        first_new: int | None = None
        while holding.held_blocks < complete:
            place = holding.held_blocks
            block = holding.blocks[place]
            holding.private_tokens -= self._block_tokens
            self._private_tokens -= self._block_tokens
            # Another request may have computed the same block meanwhile: then one copy is enough.
            if block in self._references:
                self._hold(block)
                self._tell_stored(holding, first_new, place)
                first_new = None
            else:
                self._references[block] = 1
                first_new = place if first_new is None else first_new
            holding.held_blocks += 1
        self._tell_stored(holding, first_new, holding.held_blocks)

    def release(self, holding: Holding) -> None:
        """Take back all that the request holds. Its blocks stay in the cache until they are evicted."""
        for place in range(holding.held_blocks - 1, -1, -1):
            block = holding.blocks[place]
            self._references[block] -= 1
            if self._references[block] == 0:
                self._idle[block] = None
        holding.held_blocks = 0
        self._private_tokens -= holding.private_tokens
        holding.private_tokens = 0

    def clear_idle(self) -> None:
        """Forget every block that no request holds, as ``/reset_prefix_cache`` does."""
        for block in self._idle:
            del self._references[block]
            if self.listener is not None and self._references:
                self.listener.removed(block)
        self._idle.clear()
        self._host.clear()
        if self.listener is not None and not self._references:
            self.listener.cleared()

    def _hold(self, block: BlockKey) -> None:
        if self._references[block] == 0:
            del self._idle[block]
        self._references[block] += 1

    def _remember(self, block: BlockKey) -> None:
        self._host.pop(block, None)
        if len(self._host) == self._settings.host_blocks:
            self._host.popitem(last=False)
        self._host[block] = None

    def _fits_with_shared_blocks(self, holding: Holding, target_tokens: int) -> bool:
        needed = target_tokens
        for block in holding.blocks:
            references = self._references.get(block)
            if references is None:
                break
            if references > 0:
                needed -= self._block_tokens
        return needed <= self.free_tokens

    def _tell_stored(self, holding: Holding, first: int | None, stop: int) -> None:
        if self.listener is None or first is None:
            return
        parent = holding.blocks[first - 1] if first > 0 else None
        tokens = holding.tokens[first * self._block_tokens : stop * self._block_tokens]
        self.listener.stored(parent, holding.blocks[first:stop], tokens)


def block_keys(prompt: Sequence[int], block_tokens: int, *, root: int) -> list[BlockKey]:
    """Return the keys of a prompt's complete blocks; ``root`` stands for what else decides the cache's content."""
    keys: list[BlockKey] = []
    parent = root
    for start in range(0, len(prompt) - block_tokens + 1, block_tokens):
        # Hashes of numbers do not depend on the process. 63 bits fit every reader's signed integer.
        parent = hash((parent, *prompt[start : start + block_tokens])) & 0x7FFF_FFFF_FFFF_FFFF
        keys.append(parent)
    return keys
