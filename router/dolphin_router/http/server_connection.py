"""One connection from a client: requests answered one at a time and in order, and closed when it must be."""

from __future__ import annotations

import asyncio
import socket
from math import inf
from typing import Protocol, cast

from .deadlines import Deadlines
from .errors import error_object
from .half_close import half_close
from .limits import HttpLimits
from .request import HttpRequest
from .request_reader import Refusal, RequestReader
from .response import Response
from .status import status_line

HIGH_WATER_BYTES = 65_536
"""Unsent bytes of an answer above which its source is not read; uvicorn's mark.

A stream's source is read at most 256 KiB at a time, and nothing more is read of it once this mark is passed. For a
client that reads nothing the process therefore holds at most 320 KiB of a stream, however long it is. An answer that is
no stream may add what the relay holds back of it, 1 MiB at most.
"""

UNSENT_IN_KERNEL_BYTES = 131_072
"""What the kernel holds of an answer beyond what is on its way to the client. Without this it takes up to 4 MiB for a
client that does not read, and a container's memory limit counts that too."""


class ClientGone(Protocol):
    """Whoever answers a request, as its connection knows it."""

    def on_client_gone(self) -> None:
        """The client has left: nothing of the answer can be delivered any more."""

    def pause(self) -> None:
        """The client reads more slowly than the answer comes: send no more until :meth:`resume`."""

    def resume(self) -> None:
        """The client has caught up."""


class Handler(Protocol):
    """Answers requests."""

    def handle(self, request: HttpRequest, response: Response) -> ClientGone | None:
        """Begin to answer. None when the answer is complete already."""


class ConnectionSet(Protocol):
    """What a connection needs of the server that it belongs to."""

    loop: asyncio.AbstractEventLoop
    limits: HttpLimits
    deadlines: Deadlines
    handler: Handler
    connections: set[ServerConnection]
    is_stopping: bool


class ServerConnection(asyncio.Protocol):
    """Hands each request to the handler when its turn has come.

    The connection stays readable while a request is worked on, so that a client's leaving is noticed in every phase.
    It is not read while enough requests wait, and no request is begun while the client leaves answers unread.
    """

    def __init__(self, server: ConnectionSet) -> None:
        self._server = server
        self._transport: asyncio.Transport
        self._reader = RequestReader()
        self._head_number = 0
        """Of the request whose head is timed."""
        self._response: Response | None = None
        self._client_gone: ClientGone | None = None
        self._is_reading = True
        self._is_writing_paused = False
        self._is_closing = False
        self._linger_end_s = inf
        self.deadline_s = inf

    @property
    def is_answering(self) -> bool:
        """Whether the client still has to get something."""
        return self._response is not None or bool(self._reader.requests) or self._transport.get_write_buffer_size() > 0

    # Protocol interface

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read."""
        # uvloop's transports have the methods of asyncio.Transport without being one.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        raw = transport.get_extra_info("socket")
        if raw.family != socket.AF_UNIX:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_IN_KERNEL_BYTES)
        self._server.connections.add(self)
        self._server.deadlines.add(self)
        if self._server.is_stopping:
            self._close()
        else:
            self.deadline_s = self._now_s() + self._server.limits.keep_alive_s

    def data_received(self, data: bytes) -> None:
        """Parse, then begin to answer what has become complete."""
        reader = self._reader
        if reader.refusal is not None:
            self._throw_away()
            return
        if self._is_closing:
            return
        reader.feed(data, self._server.limits)
        if not reader.is_between_requests:
            self._time_request()
        elif self._response is not None:
            self.deadline_s = inf
        if self._response is None:
            self._answer_next()
        else:
            self._limit_reading()

    def eof_received(self) -> None:
        """Take the end of what the client sends for its leaving, as web servers do: the transport closes."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever is answering."""
        self._is_closing = True
        self._server.connections.discard(self)
        self._server.deadlines.remove(self)
        response, self._response = self._response, None
        if response is not None:
            response.disconnect()
        gone, self._client_gone = self._client_gone, None
        if gone is not None:
            gone.on_client_gone()

    def pause_writing(self) -> None:
        """Pass on that the client reads slowly."""
        self._is_writing_paused = True
        if self._client_gone is not None:
            self._client_gone.pause()

    def resume_writing(self) -> None:
        """Pass on that the client has caught up."""
        self._is_writing_paused = False
        if self._client_gone is not None:
            self._client_gone.resume()
        elif self._response is None:
            self._answer_next()

    # Answering

    def _answer_next(self) -> None:
        """Hand the next request to the handler. Loops, since an answer may be complete at once."""
        reader = self._reader
        while self._can_answer():
            request = reader.take()
            response = Response(self._transport, request, self._on_finish)
            if self._server.is_stopping:
                response.keep_alive = False
            self._response = response
            self.deadline_s = inf if reader.is_between_requests else self.deadline_s
            client_gone = self._server.handler.handle(request, response)
            # Otherwise it is finished already: `_on_finish` has run, and another request may be under way.
            if self._is_answering_with(response):
                self._client_gone = client_gone
                if self._is_writing_paused and client_gone is not None:
                    client_gone.pause()
        self._limit_reading()
        if self._response is None and not self._is_closing:
            self._wait()

    def _can_answer(self) -> bool:
        is_free = self._response is None and not self._is_closing and not self._is_writing_paused
        return is_free and bool(self._reader.requests)

    def _is_answering_with(self, response: Response) -> bool:
        # A method of its own: mypyc would take for granted that what was assigned before a call is there after it.
        return self._response is response

    def _on_finish(self, response: Response) -> None:
        if self._response is not response:
            return
        self._response = None
        self._client_gone = None
        if not response.keep_alive or self._server.is_stopping:
            self._close()
        elif self._reader.requests or self._reader.refusal is not None:
            # Not from inside the finished answer's own code.
            self._server.loop.call_soon(self._answer_next)
        else:
            self._wait()

    def _wait(self) -> None:
        """Nothing is being answered: wait for the client."""
        reader = self._reader
        limits = self._server.limits
        if self._is_writing_paused and (reader.requests or reader.refusal is not None):
            self.deadline_s = self._now_s() + limits.unread_s
        elif reader.refusal is not None:
            self._send_refusal(reader.refusal)
        elif reader.is_between_requests:
            self.deadline_s = self._now_s() + limits.keep_alive_s
        elif reader.awaits_continue:
            reader.awaits_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    # Ending

    def close_when_idle(self) -> None:
        """Close now, or after the request that is under way."""
        if self._is_closing:
            return
        if self._response is not None:
            # Too late to say it in the head of an answer that has begun.
            self._response.keep_alive = False
        elif self._reader.is_between_requests and not self._reader.requests and self._reader.refusal is None:
            self._close()

    def abort(self) -> None:
        """Close at once."""
        if self._response is not None:
            # Its source does not know yet.
            self._response.disconnect()
        self._transport.abort()

    def on_deadline(self) -> None:
        """Close an idle connection; refuse a request that does not come to its end; cut what does not end at all."""
        reader = self._reader
        if self._is_closing:
            self._transport.abort()
        elif self._response is not None:
            # The next request waits for the client, who may be waiting for this answer.
            self.deadline_s = inf if reader.is_between_requests else self._now_s() + self._server.limits.body_timeout_s
        elif self._is_writing_paused and (reader.requests or reader.refusal is not None):
            self._transport.abort()
        elif reader.is_between_requests:
            self._close()
        else:
            reader.refusal = Refusal(408, "the request did not arrive in time")
            self._send_refusal(reader.refusal)

    def _close(self) -> None:
        """Close when everything has been sent, and in any case some day."""
        self._is_closing = True
        self._transport.close()
        self.deadline_s = self._now_s() + self._server.limits.unread_s

    def _send_refusal(self, refusal: Refusal) -> None:
        body = error_object(refusal.status, refusal.message)
        self._transport.write(
            b"%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (status_line(refusal.status), len(body), body)
        )
        self._is_closing = True
        # With unread bytes in the socket a close would reset the connection, and the client might never see the
        # answer: read on for a moment, and throw away.
        half_close(self._transport)
        limits = self._server.limits
        now_s = self._now_s()
        self._linger_end_s = now_s + limits.longest_linger_s
        self.deadline_s = now_s + limits.linger_s

    # Reading

    def _throw_away(self) -> None:
        """Give a client that was refused, or is going to be, time to stop sending."""
        if self._is_closing:
            self.deadline_s = min(self._now_s() + self._server.limits.linger_s, self._linger_end_s)

    def _time_request(self) -> None:
        """Give the client time for the rest of a request: once for its head, again and again for its body."""
        reader = self._reader
        limits = self._server.limits
        if not reader.is_in_head:
            self.deadline_s = self._now_s() + limits.body_timeout_s
        elif reader.begun != self._head_number:
            self._head_number = reader.begun
            self.deadline_s = self._now_s() + limits.head_timeout_s

    def _limit_reading(self) -> None:
        reader = self._reader
        limits = self._server.limits
        should_read = len(reader.requests) < limits.pipelined_requests and reader.waiting_bytes < limits.body_bytes
        if should_read != self._is_reading and not self._transport.is_closing():
            self._is_reading = should_read
            if should_read:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _now_s(self) -> float:
        return self._server.loop.time()
