"""The numbers that an engine gives to its messages: counting up by one from 0, anew when it restarts."""

from __future__ import annotations

from enum import Enum
from typing import Final

REPEAT_S: Final = 1.0
"""How long after the replay that precedes all live messages one that was part of it may still arrive on the other
socket (own choice). Later, a number seen before is a restart."""


class Verdict(Enum):
    """What a message's number says."""

    NEXT = "next"
    REPEATED = "repeated"
    """A replay has brought this message already."""
    GAP = "gap"
    """The messages from ``Numbering.wanted`` up to this one are missing."""
    RESTART = "restart"
    """The number went back: the engine has started anew, and what it held is gone."""


class Numbering:
    """Where the stream of one engine's messages stands."""

    __slots__ = ("_last", "_repeats_until_s", "wanted")

    def __init__(self) -> None:
        self.wanted = 0
        """Number of the first message that has not been seen."""
        self._last = -1
        self._repeats_until_s = 0.0

    def judge(self, number: int, *, now_s: float) -> Verdict:
        """Return what a message that was just published says of those before it."""
        if number >= self.wanted:
            verdict = Verdict.NEXT if number == self.wanted else Verdict.GAP
        elif number > self._last and (self._last >= 0 or now_s < self._repeats_until_s):
            verdict = Verdict.REPEATED
        else:
            verdict = Verdict.RESTART
            self.wanted = 0
        self._last = number
        return verdict

    def seen(self, number: int) -> None:
        """Note that a message was taken in."""
        self.wanted = number + 1

    def replayed(self, *, now_s: float) -> None:
        """Note that a replay has ended."""
        self._repeats_until_s = now_s + REPEAT_S
