"""How many requests are worked on at once, and how many may wait for their turn."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol


class Admitted(Protocol):
    """Something that waits for its turn."""

    def on_admission(self) -> None:
        """Its turn has come: it holds a place and must give it back by ``leave``."""


class Admission:
    """Places for requests, first come first served.

    A connection has one request at a time here, so that none can take the places of others by pipelining.
    """

    def __init__(self, *, places: int, waiting_places: int) -> None:
        self._places = places
        self._waiting_places = waiting_places
        self._taken = 0
        self._is_admitting = False
        self._waiting: OrderedDict[Admitted, None] = OrderedDict()

    @property
    def taken(self) -> int:
        """Requests that hold a place."""
        return self._taken

    @property
    def waiting(self) -> int:
        """Requests that wait for one."""
        return len(self._waiting)

    def change(self, *, places: int, waiting_places: int) -> None:
        """Set new limits. Requests that are there already stay."""
        self._places = places
        self._waiting_places = waiting_places
        self._admit()

    def try_enter(self) -> bool:
        """Take a place if one is free and nobody waits."""
        if self._taken < self._places and not self._waiting:
            self._taken += 1
            return True
        return False

    def try_wait(self, request: Admitted) -> bool:
        """Wait for a place; false when too many do already."""
        if len(self._waiting) >= self._waiting_places:
            return False
        self._waiting[request] = None
        return True

    def stop_waiting(self, request: Admitted) -> None:
        """Give up waiting."""
        self._waiting.pop(request, None)

    def leave(self) -> None:
        """Give a place back."""
        self._taken -= 1
        self._admit()

    def _admit(self) -> None:
        # One that is admitted may leave at once, refused for want of workers: the loop goes on with the next one then,
        # and not a call deeper.
        if self._is_admitting:
            return
        self._is_admitting = True
        try:
            while self._waiting and self._taken < self._places:
                request, _ = self._waiting.popitem(last=False)
                self._taken += 1
                request.on_admission()
        finally:
            self._is_admitting = False
