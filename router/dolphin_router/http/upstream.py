"""Calling a worker: one request, its answer as it comes, over a pool of connections."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Protocol

from .call_failure import CallFailure
from .request import Headers
from .upstream_connection import UpstreamConnection

__all__ = ["Call", "CallFailure", "CallListener", "ConnectionPool", "UpstreamConnection"]

IDLE_S = 4.0
"""Workers behind uvicorn close an idle connection after 5 s: be the first."""

RACE_S = 1.0
"""A worker that closes an idle connection while a request is on its way to it shows that within a round trip. One that
closes later has most likely read the request, and may have begun to work on it."""


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

    __slots__ = (
        "_connection",
        "_data",
        "_handed_over_s",
        "_has_retried",
        "_is_over",
        "_is_paused",
        "_listener",
        "_pool",
        "is_head",
    )

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
        self._handed_over_s = 0.0
        self.is_head = is_head
        pool.connect(self)

    @property
    def was_sent(self) -> bool:
        """Whether the worker may have seen the request."""
        return self._connection is not None or self._has_retried

    def abort(self) -> None:
        """End the call: the worker sees its client leave. Nothing is heard afterwards."""
        if self._is_over:
            return
        self._is_over = True
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
        self._let_go()

    def leave(self) -> bool:
        """Let the worker see its client leave, and hear of an answer that is on its way all the same. False when none
        can be: the call is over then, as after :meth:`abort`."""
        if self._is_over or self._connection is None or not self._connection.stop_sending():
            self.abort()
            return False
        self._has_retried = True  # Not sent again.
        return True

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
        self._handed_over_s = self._pool.now_s()
        connection.begin(self, self._data)
        if self._is_paused:
            connection.pause()
        return True

    def on_unreachable(self, reason: str) -> None:
        """There is no connection."""
        # What was sent over an idle connection may have been read all the same.
        self._fail(CallFailure.CLOSED_EARLY if self._has_retried else CallFailure.UNREACHABLE, reason)

    def on_head(self, status: int, headers: Headers) -> None:
        """Pass it on."""
        self._data = b""  # Not sent again from here on.
        if not self._is_over:
            self._listener.on_head(status, headers)

    def on_body(self, data: bytes) -> None:
        """Pass it on."""
        if not self._is_over:
            self._listener.on_body(data)

    def on_end(self) -> None:
        """Pass it on."""
        if not self._is_over:
            self._is_over = True
            self._connection = None
            self._let_go().on_end()

    def on_broken(self, failure: CallFailure, reason: str, *, was_idle: bool) -> None:
        """Try once more where the worker closed an idle connection at the moment at which it was used."""
        if self._is_over:
            return
        self._connection = None
        is_race = failure is CallFailure.CLOSED_EARLY and was_idle and self._pool.now_s() - self._handed_over_s < RACE_S
        if is_race and not self._has_retried:
            self._has_retried = True
            self._pool.connect_anew(self)
        else:
            self._fail(failure, reason)

    def _fail(self, failure: CallFailure, reason: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._let_go().on_failure(failure, reason)

    def _let_go(self) -> CallListener:
        # Listener and call hold each other; without this only the garbage collector would part them.
        listener, self._listener = self._listener, _NOBODY
        self._data = b""
        return listener


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
        # The one that has been idle longest comes first.
        self._idle: OrderedDict[UpstreamConnection, None] = OrderedDict()
        self._sweep: asyncio.TimerHandle | None = None
        self._connecting: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def idle(self) -> int:
        """Connections that wait for a call."""
        return len(self._idle)

    def now_s(self) -> float:
        """Return the time on the event loop's clock."""
        return self._loop.time()

    def connect(self, call: Call) -> None:
        """Give a call a connection: the idle one that was used last, else a new one."""
        now_s = self._loop.time()
        while self._idle:
            connection, _ = self._idle.popitem()
            if now_s - connection.idle_since_s < self._idle_s and not connection.is_closing:
                call.on_connection(connection)
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
        connection.was_idle = True
        connection.idle_since_s = self._loop.time()
        self._idle[connection] = None
        if self._sweep is None:
            self._sweep = self._loop.call_later(self._idle_s, self._close_old)

    def forget(self, connection: UpstreamConnection) -> None:
        """Take note that a connection has ended."""
        self._idle.pop(connection, None)

    def close(self) -> None:
        """Close the idle connections. Calls under way go on; their connections close behind them."""
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        while self._idle:
            self._idle.popitem()[0].abort()

    def _close_old(self) -> None:
        self._sweep = None
        now_s = self._loop.time()
        while self._idle:
            oldest = next(iter(self._idle))
            left_s = oldest.idle_since_s + self._idle_s - now_s
            if left_s > 0.0:
                self._sweep = self._loop.call_later(left_s, self._close_old)
                return
            del self._idle[oldest]
            oldest.abort()

    async def _open(self, call: Call) -> None:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await self._loop.create_connection(
                    lambda: UpstreamConnection(self), self._host, self._port
                )
        except TimeoutError:
            call.on_unreachable(f"no connection within {self._connect_timeout_s:g} s")
            return
        except (OSError, UnicodeError) as error:
            # UnicodeError: the name cannot be one of a host.
            call.on_unreachable(str(error))
            return
        if connection.is_closing:
            call.on_unreachable("the worker closed the connection as soon as it was there")
        elif not call.on_connection(connection):
            self.release(connection)
