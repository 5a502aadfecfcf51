"""Telling a decode worker to take a KV cache that nobody wants any more, so that the prefill worker frees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from dolphin_router.fleet import WorkerState
from dolphin_router.http.deadlines import Deadlines
from dolphin_router.http.request import Headers
from dolphin_router.http.upstream import Call, CallFailure

StrandedPhase = Literal["prefill", "decode", "release"]
"""Where a KV cache was lost: with a prefill worker that was given up, with a decode worker that failed after it had
been told of it, or because no decode worker could be told to drop it, be it that it was never announced."""


class ReleaseCall:
    """A request for one token, whose answer is thrown away."""

    def __init__(
        self,
        state: WorkerState,
        data: bytes,
        *,
        deadlines: Deadlines,
        deadline_s: float,
        on_stranded: Callable[[], None],
    ) -> None:
        """Send it.

        Args:
            state: the decode worker.
            data: the whole request.
            deadlines: watch over it.
            deadline_s: when to give up, on the event loop's clock.
            on_stranded: called when the worker could not be told: the KV cache stays until its lease ends.
        """
        self._deadlines = deadlines
        self.deadline_s = deadline_s
        self._on_stranded = on_stranded
        self._status = 0
        self._call = Call(state.pool, data, self)
        deadlines.add(self)

    def on_deadline(self) -> None:
        """Give up."""
        self._call.abort()
        self._deadlines.remove(self)
        self._on_stranded()

    def on_head(self, status: int, headers: Headers) -> None:
        """Keep the status."""
        self._status = status

    def on_body(self, data: bytes) -> None:
        """Throw it away."""

    def on_end(self) -> None:
        """The worker has taken the KV cache, or says that it could not."""
        self._deadlines.remove(self)
        if self._status != 200:
            self._on_stranded()

    def on_failure(self, failure: CallFailure, reason: str) -> None:
        """The worker could not be told."""
        self._deadlines.remove(self)
        self._on_stranded()
