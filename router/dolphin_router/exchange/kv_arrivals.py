"""KV caches on their way to decode workers, for engines whose prefill workers push them there and announce it."""

from __future__ import annotations

from collections.abc import Callable


class Arrival:
    """One KV cache. Open until the last notice has come, or until :meth:`close`."""

    __slots__ = ("_arrivals", "_missing", "_on_complete", "_transfer_id")

    def __init__(self, arrivals: KvArrivals, transfer_id: int, notices: int) -> None:
        self._arrivals = arrivals
        self._transfer_id = transfer_id
        self._missing = notices
        self._on_complete: Callable[[], None] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all notices have come."""
        return self._missing <= 0

    def call_when_complete(self, on_complete: Callable[[], None]) -> None:
        """Call this, and nothing that was to be called before, when the last notice comes."""
        self._on_complete = on_complete

    def close(self) -> None:
        """Wait no longer: nothing is called, and notices that still come are for nobody."""
        self._on_complete = None
        self._arrivals.forget(self._transfer_id)

    def announce(self) -> None:
        """Take a notice."""
        self._missing -= 1
        if self._missing == 0:
            on_complete = self._on_complete
            self.close()
            if on_complete is not None:
                on_complete()


class KvArrivals:
    """All KV caches that are awaited. As many as there are requests with a remote prefill under way, and those that
    have just been given up: whatever else is announced is only counted."""

    def __init__(self) -> None:
        self._open: dict[int, Arrival] = {}
        self.taken = 0
        """Notices of KV caches that were awaited."""
        self.unknown = 0
        """Notices of others: they came twice, too late, or are for another router."""
        self.malformed = 0
        """Messages that are no notices."""

    def __len__(self) -> int:
        """KV caches that are awaited."""
        return len(self._open)

    def expect(self, transfer_id: int, notices: int) -> Arrival:
        """Await a KV cache, before the prefill worker is asked: notices may come before its answer does."""
        arrival = self._open[transfer_id] = Arrival(self, transfer_id, notices)
        return arrival

    def announce(self, transfer_id: int) -> None:
        """Take a notice."""
        arrival = self._open.get(transfer_id)
        if arrival is None:
            self.unknown += 1
        else:
            self.taken += 1
            arrival.announce()

    def forget(self, transfer_id: int) -> None:
        """Await a KV cache no longer."""
        self._open.pop(transfer_id, None)
