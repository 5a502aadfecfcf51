"""Timeouts for many objects by one timer."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Timed(Protocol):
    """Something that must not wait for ever."""

    deadline_s: float
    """On the event loop's clock; infinite when there is none. May be changed at any time."""

    def on_deadline(self) -> None:
        """Act: the deadline has passed. Called again at every tick until the deadline is changed or removed."""


class Deadlines:
    """Looks at all its objects at every tick, so that moving a deadline costs one assignment.

    A deadline is noticed at most one tick late. A tick costs about 0.1 µs an object.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, tick_s: float = 0.1) -> None:
        self._loop = loop
        self._tick_s = tick_s
        self._objects: set[Timed] = set()
        self._handle: asyncio.TimerHandle | None = None
        self._is_closed = False

    def __len__(self) -> int:
        """Objects that are watched."""
        return len(self._objects)

    def add(self, timed: Timed) -> None:
        """Watch an object until it is removed."""
        if self._is_closed:
            return
        self._objects.add(timed)
        if self._handle is None:
            self._handle = self._loop.call_later(self._tick_s, self._tick)

    def remove(self, timed: Timed) -> None:
        """Stop watching an object; nothing happens if it is not watched."""
        self._objects.discard(timed)

    def close(self) -> None:
        """Stop for good."""
        self._is_closed = True
        self._objects.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _tick(self) -> None:
        now_s = self._loop.time()
        for timed in [timed for timed in self._objects if timed.deadline_s <= now_s]:
            # What another object has just done may have moved this one's deadline, or ended it.
            if timed.deadline_s > now_s or timed not in self._objects:
                continue
            try:
                timed.on_deadline()
            except Exception as error:
                # One object's fault must not stop the clock of all.
                self._loop.call_exception_handler(
                    {"message": "a deadline could not be acted on", "exception": error, "object": timed}
                )
        # An idle router sleeps.
        self._handle = self._loop.call_later(self._tick_s, self._tick) if self._objects else None
