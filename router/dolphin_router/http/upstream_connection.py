"""One connection to a worker: one call at a time."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

import httptools

from .call_failure import CallFailure
from .half_close import half_close
from .request import Headers

MOST_HEAD_BYTES = 262_144
"""Of a worker's answer, interim answers included."""


class Caller(Protocol):
    """Whose request a connection carries."""

    is_head: bool
    """Whether the method is HEAD, whose answers have no body."""

    def on_head(self, status: int, headers: Headers) -> None:
        """The head of the answer is there."""

    def on_body(self, data: bytes) -> None:
        """A piece of the body, without its framing."""

    def on_end(self) -> None:
        """The answer is complete; the connection has let the call go."""

    def on_broken(self, failure: CallFailure, reason: str, *, was_idle: bool) -> None:
        """The connection is of no use any more. ``was_idle`` when it had carried a call before and then waited."""


class ConnectionKeeper(Protocol):
    """Where a connection belongs."""

    def release(self, connection: UpstreamConnection) -> None:
        """Keep an idle connection for the next call."""

    def forget(self, connection: UpstreamConnection) -> None:
        """Take note that a connection has ended."""


class UpstreamConnection(asyncio.Protocol):
    """Sends a call's request and reads the one answer to it.

    Whatever follows an answer without having been asked for is dropped together with the connection.
    """

    def __init__(self, keeper: ConnectionKeeper) -> None:
        self._keeper = keeper
        self._transport: asyncio.Transport
        self._caller: Caller | None = None
        self._is_paused = False
        self._parts: list[bytes] = []
        # The parser calls this for every piece of a body; appending is all there is to do.
        self.on_body = self._parts.append
        self._parser = httptools.HttpResponseParser(self)
        self._reset()
        self._has_stopped_sending = False
        self.was_idle = False
        self.idle_since_s = 0.0

    def _reset(self) -> None:
        self._headers: Headers = []
        self._status = 0
        self._head_bytes = 0
        self._head_is_new = False
        self._is_complete = False
        self._has_begun = False
        self._can_stay_open = False
        self._ends_at_close = False

    @property
    def is_closing(self) -> bool:
        """Whether no call can be made any more."""
        return self._transport.is_closing()

    def begin(self, caller: Caller, data: bytes) -> None:
        """Send a call's request."""
        self._caller = caller
        self._reset()
        self._transport.write(data)

    def abort(self) -> None:
        """Close at once; nobody hears of it."""
        self._caller = None
        self._transport.abort()

    def stop_sending(self) -> bool:
        """Let the worker see its client leave, and read on: the answer may be on its way. False, and nothing done, when
        the worker would not see it, since it has not read the whole request yet or is gone itself."""
        self._has_stopped_sending = half_close(self._transport)
        return self._has_stopped_sending

    def pause(self) -> None:
        """Stop reading."""
        if not self._is_paused and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._is_paused and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    # Protocol interface

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport without being one.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        caller = self._caller
        if caller is None:
            # Nothing was asked.
            self._transport.abort()
            return
        self._has_begun = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._can_stay_open = False
            # The answer itself may be complete, and only what follows it be wrong.
            if not self._is_complete:
                self._break(CallFailure.INVALID, f"not a valid HTTP/1.1 answer: {error}")
                return
        if not self._status:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self._break(CallFailure.INVALID, f"the head is longer than {MOST_HEAD_BYTES} bytes")
            return
        if self._head_is_new:
            self._head_is_new = False
            caller.on_head(self._status, self._headers)
        parts = self._parts
        if parts:
            piece = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            caller.on_body(piece)
        # The call may have been aborted by what it heard.
        if self._is_complete and self._caller is caller:
            self._end()

    def eof_received(self) -> None:
        """Close; :meth:`connection_lost` sees what was missing."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._keeper.forget(self)
        caller, self._caller = self._caller, None
        if caller is None:
            return
        if not self._has_begun:
            caller.on_broken(CallFailure.CLOSED_EARLY, _text(exc), was_idle=self.was_idle)
        elif self._ends_at_close and exc is None:
            caller.on_end()
        else:
            caller.on_broken(CallFailure.CUT, _text(exc), was_idle=False)

    # Parser callbacks

    def on_message_begin(self) -> None:
        if self._is_complete:
            raise ValueError("two answers to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers say nothing that a router needs.
        if not self._status:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._headers = []
            return
        self._status = status
        self._head_is_new = True
        self._can_stay_open = self._parser.should_keep_alive()
        # Otherwise a length or chunks tell where the body ends.
        self._ends_at_close = not self._can_stay_open and not _has_end(self._headers)
        if self._caller is not None and self._caller.is_head:
            # The parser goes on to wait for a body.
            self._can_stay_open = False
            self._is_complete = True

    def on_message_complete(self) -> None:
        # An interim answer has no status here.
        if self._status:
            self._is_complete = True

    # Ending

    def _end(self) -> None:
        caller, self._caller = self._caller, None
        assert caller is not None
        # A worker may answer before it has read the whole request. The rest then is of no use to anybody, and may never
        # be read.
        can_be_used = self._can_stay_open and not self._has_stopped_sending
        if can_be_used and not self._transport.get_write_buffer_size():
            self.resume()
            self._keeper.release(self)
        else:
            self._transport.abort()
        caller.on_end()

    def _break(self, failure: CallFailure, reason: str) -> None:
        caller, self._caller = self._caller, None
        self._transport.abort()
        if caller is not None:
            caller.on_broken(failure, reason, was_idle=False)


def _has_end(headers: Headers) -> bool:
    for name, value in headers:
        lowered = name.lower()
        if lowered == b"content-length":
            return True
        if lowered == b"transfer-encoding" and value.strip().lower().endswith(b"chunked"):
            return True
    return False


def _text(exc: Exception | None) -> str:
    return str(exc) if exc is not None else "the worker closed the connection"
