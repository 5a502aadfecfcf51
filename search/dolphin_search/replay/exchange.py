"""One request on a connection of its own, and its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

import httptools

from dolphin_router.contract import ActionName
from dolphin_search.replay.answer import Answer
from dolphin_search.replay.event_stream import LONGEST_REASON, EventStream, fail

_ACTIONS: Final[dict[bytes, ActionName]] = {b"local": "local", b"remote": "remote"}


class Exchange(asyncio.Protocol):
    """Sends a request on a connection that was opened for it, and reads the answer.

    A connection is used once: one that was kept could be closed by the server at the moment at which the next request
    is sent on it, and then either the request fails or it is measured from a second attempt.

    Args:
        answer: filled as the answer comes.
        clock: seconds since the replay began.
    """

    def __init__(self, answer: Answer, clock: Callable[[], float]) -> None:
        self._answer = answer
        self._clock = clock
        self._events = EventStream(answer)
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._error_body = b""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when nothing more comes."""

    def send(self, request: bytes) -> None:
        """Send it. The connection must be there; if it has been lost meanwhile, the answer says so."""
        if self.ended.done():
            return
        assert self._transport is not None
        self._answer.end = "unfinished"
        self._answer.sent_s = self._clock()
        self._transport.write(request)

    def close(self) -> None:
        """Close the connection, whatever is still to come on it."""
        if self._transport is not None:
            self._transport.abort()

    # Of the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are what their protocol says, and no subclasses.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            fail(self._answer, f"the answer is no HTTP: {error}")
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            fail(self._answer, f"the connection was lost: {exc or 'closed by the server'}")
        self._end()

    # Of the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        answer = self._answer
        lowered = name.lower()
        if lowered == b"x-dolphin-action":
            answer.action = _ACTIONS.get(value)
        elif lowered == b"x-dolphin-cluster":
            answer.cluster = int(value)
        elif lowered == b"x-dolphin-features":
            answer.features = tuple(map(float, value.split(b",")))

    def on_headers_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._answer.status == 200:
            self._events.feed(body, now_s=self._clock())
        elif len(self._error_body) < LONGEST_REASON:
            self._error_body += body

    def on_message_complete(self) -> None:
        answer = self._answer
        if answer.status != 200:
            fail(answer, f"status {answer.status}: {self._error_body.decode('utf-8', 'replace')}")
        elif not self._events.is_done:
            fail(answer, "the stream ended before the answer did")
        elif answer.events == 0:
            fail(answer, "the answer holds no token")
        elif answer.end == "unfinished":
            answer.end = "whole"
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
        if self._transport is not None:
            self._transport.close()
