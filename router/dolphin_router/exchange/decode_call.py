"""The call of a decode leg that a KV cache goes with."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Final

from dolphin_router.http.request import Headers
from dolphin_router.http.upstream import RACE_S, Call, CallFailure, CallListener, ConnectionPool, UpstreamConnection

TAKE_UP_S: Final = 0.05
"""How long a worker may need from a request's arrival until its scheduler knows of it. A request that is aborted before
leaves nobody to tell the prefill worker that its KV cache is not wanted."""


class _Nobody:
    def on_head(self, status: int, headers: Headers) -> None: ...
    def on_body(self, data: bytes) -> None: ...
    def on_end(self) -> None: ...
    def on_failure(self, failure: CallFailure, reason: str) -> None: ...


_NOBODY: Final = _Nobody()


class DecodeCall(Call):
    """Sends its request at most once: whoever has read it may have used the KV cache, whose place may then hold another
    one."""

    __slots__ = ("_loop", "_sent_s", "was_idle")

    def __init__(
        self, pool: ConnectionPool, data: bytes, listener: CallListener, *, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Send a request."""
        self._loop = loop
        self._sent_s = inf
        self.was_idle = False
        """After a failure: whether the connection had been idle, so that the worker may have closed it unread."""
        super().__init__(pool, data, listener)

    @property
    def was_sent(self) -> bool:
        """Whether the worker may have seen the request, be it long ago."""
        return self._sent_s < inf

    def on_connection(self, connection: UpstreamConnection) -> bool:
        """Send the request, and note when."""
        self._sent_s = self._loop.time()
        return super().on_connection(connection)

    def on_broken(self, failure: CallFailure, reason: str, *, was_idle: bool) -> None:
        """Fail, also where another call would try again."""
        self.was_idle = was_idle and self._loop.time() - self._sent_s < RACE_S
        super().on_broken(failure, reason, was_idle=False)

    def abort_when_taken_up(self) -> None:
        """Abort as soon as the worker has had the time to take the request up. Nothing is heard afterwards."""
        self._listener = _NOBODY
        taken_up_s = self._sent_s + TAKE_UP_S
        if taken_up_s <= self._loop.time():
            self.abort()
        else:
            self._loop.call_at(taken_up_s, self.abort)
