"""Sets of workers as bits of an integer, for indexes that look a prompt up once for all workers."""

from __future__ import annotations


class BitPool:
    """Gives every worker a bit of its own, and takes it back, so that the integers stay as short as they can."""

    __slots__ = ("_free", "_used")

    def __init__(self) -> None:
        self._free: list[int] = []
        self._used = 0

    def take(self) -> int:
        """Return a bit that no worker has."""
        if self._free:
            return self._free.pop()
        self._used += 1
        return 1 << (self._used - 1)

    def give_back(self, bit: int) -> None:
        """Let another worker have this bit. Nothing may hold it any more."""
        self._free.append(bit)


def credit(found: dict[int, int], workers: int, length: int) -> None:
    """Note for each of these workers' bits how much of a prompt it holds."""
    while workers:
        bit = workers & -workers
        found[bit] = length
        workers ^= bit
