"""A prefill leg that runs to its end although its request is over."""

from __future__ import annotations

from collections.abc import Callable

from dolphin_router.http.deadlines import Deadlines
from dolphin_router.http.request import Headers
from dolphin_router.http.upstream import CallFailure

from .prefill_leg import PrefillLeg


class AbandonedPrefill:
    """Reads the answer, so that the connection can be used again or the KV cache be freed; not for ever."""

    def __init__(
        self,
        leg: PrefillLeg,
        *,
        deadlines: Deadlines,
        deadline_s: float,
        on_answer: Callable[[bytes], None] | None,
        on_stranded: Callable[[], None] | None,
    ) -> None:
        """Take the leg over.

        Args:
            leg: from now on its answer comes here.
            deadlines: watch over it.
            deadline_s: when to give up, on the event loop's clock.
            on_answer: called with the body of an answer with status 200; none when it is of no use.
            on_stranded: called when there was none in time: the worker may keep a KV cache. None when it does not.
        """
        self._leg: PrefillLeg | None = leg
        self._deadlines = deadlines
        self.deadline_s = deadline_s
        self._on_answer = on_answer
        self._on_stranded = on_stranded
        leg.owner = self
        deadlines.add(self)

    def on_deadline(self) -> None:
        """Give up."""
        if self._leg is not None:
            self._leg.abort()
        self._end_without_answer()

    def on_prefill_answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Use it, or throw it away."""
        self._end()
        if status == 200 and self._on_answer is not None:
            self._on_answer(body)

    def on_prefill_failure(self, failure: CallFailure, reason: str) -> None:
        """Nothing will come any more."""
        self._end_without_answer()

    def _end(self) -> None:
        self._deadlines.remove(self)
        # The two hold each other.
        self._leg = None

    def _end_without_answer(self) -> None:
        self._end()
        if self._on_stranded is not None:
            self._on_stranded()
