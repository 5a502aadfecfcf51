"""A KV cache that nobody waits for any more and that may still arrive at its decode worker, where it would stay."""

from __future__ import annotations

from collections.abc import Callable

from dolphin_router.http.deadlines import Deadlines

from .kv_arrivals import Arrival


class AbandonedTransfer:
    """Waits for the notices all the same; not for ever."""

    def __init__(
        self,
        arrival: Arrival,
        *,
        deadlines: Deadlines,
        deadline_s: float,
        on_arrival: Callable[[], None],
        on_timeout: Callable[[], None] | None,
    ) -> None:
        """Take the arrival over.

        Args:
            arrival: not complete yet.
            deadlines: watch over it.
            deadline_s: when to give up, on the event loop's clock.
            on_arrival: called when the KV cache is there.
            on_timeout: called when it was not announced in time; none when it is most likely not on its way at all.
        """
        self._arrival = arrival
        self._deadlines = deadlines
        self.deadline_s = deadline_s
        self._on_arrival = on_arrival
        self._on_timeout = on_timeout
        arrival.call_when_complete(self._arrived)
        deadlines.add(self)

    def on_deadline(self) -> None:
        """Give up."""
        self._deadlines.remove(self)
        self._arrival.close()
        if self._on_timeout is not None:
            self._on_timeout()

    def _arrived(self) -> None:
        self._deadlines.remove(self)
        self._on_arrival()
