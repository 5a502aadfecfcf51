"""Calling a worker: one request, its answer as it comes, over a pool of connections."""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum
from typing import Protocol, cast

import httptools

from .request import Headers

IDLE_S = 4.0
"""Workers behind uvicorn close an idle connection after 5 s: be the first."""

MOST_HEAD_BYTES = 262_144
"""Of a worker's answer."""


class CallFailure(Enum):
    """Why a call came to no end."""

    UNREACHABLE = "unreachable"
    """No connection: the worker has seen nothing of the request."""
    CLOSED_EARLY = "closed-early"
    """The connection ended before the first byte of an answer."""
    CUT = "cut"
    """The connection ended within the answer."""
    INVALID = "invalid"
    """What came is not HTTP."""


class CallListener(Protocol):
    """Hears how a call goes. Nothing is heard after ``on_end``, ``on_failure`` or the call's ``abort``."""

    def on_head(self, status: int, headers: Headers) -> None:
        """The head of the answer is there."""

    def on_body(self, data: bytes) -> None:
        """A piece of the body, without its framing."""

    def on_end(self) -> None:
        """The answer is complete."""

    def on_failure(self, failure: CallFailure, reason: str) -> None:
        """The call has failed."""


class _Nobody:
    """Stands in for the listener of a call that is over."""

    def on_head(self, status: int, headers: Headers) -> None: ...
    def on_body(self, data: bytes) -> None: ...
    def on_end(self) -> None: ...
    def on_failure(self, failure: CallFailure, reason: str) -> None: ...


_NOBODY = _Nobody()


class Call:
    """One request to one worker. Begins when it is made."""

    __slots__ = ("_connection", "_data", "_has_retried", "_is_over", "_is_paused", "_listener", "_pool", "is_head")

    def __init__(self, pool: ConnectionPool, data: bytes, listener: CallListener, *, is_head: bool = False) -> None:
        """Send a request.

        Args:
            pool: connections to the worker.
            data: the whole request, head and body.
            listener: hears what becomes of it; never from inside this constructor.
            is_head: whether the method is HEAD, whose answers have no body.
        """
        self._pool = pool
        self._data = data
        self._listener: CallListener = listener
        self._connection: UpstreamConnection | None = None
        self._is_over = False
        self._is_paused = False
        self._has_retried = False
        self.is_head = is_head
        pool.connect(self)

    @property
    def was_sent(self) -> bool:
        """Whether the worker may have seen the request."""
        return self._connection is not None

    def abort(self) -> None:
        """End the call: the worker sees its client leave. Nothing is heard afterwards."""
        if self._is_over:
            return
        self._is_over = True
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
        self._let_go()

    def pause(self) -> None:
        """Read no more of the answer until :meth:`resume`."""
        self._is_paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Read on."""
        self._is_paused = False
        if self._connection is not None:
            self._connection.resume()

    # What the pool and the connection tell

    def on_connection(self, connection: UpstreamConnection) -> bool:
        """Send the request over a connection. False when the call is over: the connection is not needed."""
        if self._is_over:
            return False
        self._connection = connection
        connection.begin(self, self._data)
        if self._is_paused:
            connection.pause()
        return True

    def on_unreachable(self, reason: str) -> None:
        self._fail(CallFailure.UNREACHABLE, reason)

    def on_head(self, status: int, headers: Headers) -> None:
        self._data = b""  # Not sent again from here on.
        if not self._is_over:
            self._listener.on_head(status, headers)

    def on_body(self, data: bytes) -> None:
        if not self._is_over:
            self._listener.on_body(data)

    def on_end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._connection = None
            self._let_go().on_end()

    def on_broken(self, failure: CallFailure, reason: str, *, was_idle: bool) -> None:
        """Try once more where the worker closed an idle connection at the moment at which it was used."""
        if self._is_over:
            return
        self._connection = None
        if failure is CallFailure.CLOSED_EARLY and was_idle and not self._has_retried:
            self._has_retried = True
            self._pool.connect_anew(self)
            return
        self._fail(failure, reason)

    def _fail(self, failure: CallFailure, reason: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._let_go().on_failure(failure, reason)

    def _let_go(self) -> CallListener:
        # Listener and call hold each other; without this only the garbage collector would part them.
        listener, self._listener = self._listener, _NOBODY
        return listener


class UpstreamConnection(asyncio.Protocol):
    """One connection to a worker: one call at a time."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport
        self._call: Call | None = None
        self._was_idle = False
        self._is_paused = False
        self._parts: list[bytes] = []
        # The parser calls this for every piece of a body; appending is all there is to do.
        self.on_body = self._parts.append
        self._parser = httptools.HttpResponseParser(self)
        self._reset()
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

    def begin(self, call: Call, data: bytes) -> None:
        """Send a call's request."""
        self._call = call
        self._reset()
        self._transport.write(data)

    def abort(self) -> None:
        """Close at once; nobody hears of it."""
        self._call = None
        self._transport.abort()

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
        if self._call is None:
            # Nothing was asked.
            self._transport.abort()
            return
        self._has_begun = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._break(CallFailure.INVALID, f"not a valid HTTP/1.1 answer: {error}")
            return
        call = self._call
        if self._head_is_new:
            self._head_is_new = False
            call.on_head(self._status, self._headers)
        parts = self._parts
        if parts:
            piece = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            call.on_body(piece)
        # The call may have been aborted by what it heard.
        if self._is_complete and self._call is call:
            self._end()

    def eof_received(self) -> None:
        """Close; :meth:`connection_lost` sees what was missing."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.forget(self)
        call = self._call
        if call is None:
            return
        self._call = None
        if not self._has_begun:
            call.on_broken(CallFailure.CLOSED_EARLY, _text(exc), was_idle=self._was_idle)
        elif self._ends_at_close and self._status and exc is None:
            call.on_end()
        else:
            call.on_broken(CallFailure.CUT, _text(exc), was_idle=False)

    # Parser callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MOST_HEAD_BYTES:
            raise ValueError(f"the head is longer than {MOST_HEAD_BYTES} bytes")
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
        self._ends_at_close = not self._can_stay_open and not any(
            name.lower() in (b"content-length", b"transfer-encoding") for name, _ in self._headers
        )
        if self._call is not None and self._call.is_head:
            self._can_stay_open = False
            self._is_complete = True

    def on_message_complete(self) -> None:
        if not self._status:
            return  # An interim answer.
        if self._is_complete and self._call is not None and not self._call.is_head:
            raise ValueError("two answers to one request")
        self._is_complete = True

    # Ending

    def _end(self) -> None:
        call, self._call = self._call, None
        assert call is not None
        if self._can_stay_open:
            self._was_idle = True
            self.resume()
            self._pool.release(self)
        else:
            self._transport.close()
        call.on_end()

    def _break(self, failure: CallFailure, reason: str) -> None:
        call, self._call = self._call, None
        self._transport.abort()
        if call is not None:
            call.on_broken(failure, reason, was_idle=False)


class ConnectionPool:
    """Connections to one worker: as many as there are calls, and the idle ones for the next calls."""

    def __init__(
        self, host: str, port: int, *, loop: asyncio.AbstractEventLoop, connect_timeout_s: float, idle_s: float = IDLE_S
    ) -> None:
        self._host = host
        self._port = port
        self._loop = loop
        self._connect_timeout_s = connect_timeout_s
        self._idle_s = idle_s
        self._idle: deque[UpstreamConnection] = deque()
        self._connecting: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def connect(self, call: Call) -> None:
        """Give a call a connection: the idle one that was used last, else a new one."""
        now_s = self._loop.time()
        while self._idle:
            connection = self._idle.pop()
            if now_s - connection.idle_since_s < self._idle_s:
                call.on_connection(connection)
                self._close_old(now_s)
                return
            connection.abort()
        self.connect_anew(call)

    def connect_anew(self, call: Call) -> None:
        """Give a call a new connection."""
        task = self._loop.create_task(self._open(call))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def release(self, connection: UpstreamConnection) -> None:
        """Keep an idle connection for the next call."""
        if self._is_closed:
            connection.abort()
            return
        connection.idle_since_s = self._loop.time()
        self._idle.append(connection)

    def forget(self, connection: UpstreamConnection) -> None:
        """Take note that a connection has ended."""
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close the idle connections. Calls under way go on; their connections close behind them."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().abort()

    def _close_old(self, now_s: float) -> None:
        while self._idle and now_s - self._idle[0].idle_since_s >= self._idle_s:
            self._idle.popleft().abort()

    async def _open(self, call: Call) -> None:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await self._loop.create_connection(
                    lambda: UpstreamConnection(self), self._host, self._port
                )
        except TimeoutError:
            call.on_unreachable(f"no connection within {self._connect_timeout_s:g} s")
            return
        except OSError as error:
            call.on_unreachable(str(error))
            return
        if not call.on_connection(connection):
            self.release(connection)


def _text(exc: Exception | None) -> str:
    return str(exc) if exc is not None else "the worker closed the connection"
