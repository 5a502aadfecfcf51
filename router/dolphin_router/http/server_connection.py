"""One connection from a client: bytes in, whole requests out, one answer at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from math import inf
from typing import Protocol, cast

import httptools

from .deadlines import Deadlines
from .errors import error_object
from .limits import HttpLimits
from .request import Headers, HttpRequest
from .response import Response
from .status import status_line

HIGH_WATER_BYTES = 65_536
"""Unsent bytes of an answer above which its source is not read; uvicorn's mark."""


LINGER_S = 2.0
"""After a refusal, the time in which the client may notice it and stop sending."""


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


class _Refused(Exception):
    """Raised inside the parser's callbacks to stop it."""


class ServerConnection(asyncio.Protocol):
    """Reads requests, hands each to the handler when its turn has come, and closes when it must.

    Requests that a client pipelines are answered in order. The connection stays readable while a request is worked
    on, so that a client's leaving is noticed in every phase.
    """

    def __init__(self, server: ConnectionSet) -> None:
        self._server = server
        self._transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)
        self.deadline_s = inf
        # The request that is being read.
        self._target = b""
        self._headers: Headers = []
        self._head_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._in_head = True
        self._is_between_requests = True
        self._refusal: tuple[int, str] | None = None
        # The requests that are waiting, and the one that is being answered.
        self._waiting: deque[HttpRequest] = deque()
        self._response: Response | None = None
        self._client_gone: ClientGone | None = None
        self._is_reading = True
        self._is_writing_paused = False
        self._is_closing = False

    # Protocol interface

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read."""
        # uvloop's transports have the methods of asyncio.Transport without being one.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._server.connections.add(self)
        self._server.deadlines.add(self)
        self._wait_for_request()

    def data_received(self, data: bytes) -> None:
        """Parse, then begin to answer what has become complete."""
        if self._refusal is not None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._continue_without_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserCallbackError as error:
            if self._refusal is None:
                raise error from error.__context__
        except httptools.HttpParserError as error:
            self._refusal = (400, f"not a valid HTTP/1.1 request: {error}")
        if self._response is None:
            self._answer_next()

    def eof_received(self) -> None:
        """Take the end of what the client sends for its leaving, as web servers do: the transport closes."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever is answering."""
        self._is_closing = True
        self._server.connections.discard(self)
        self._server.deadlines.remove(self)
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

    # Parser callbacks

    def on_message_begin(self) -> None:
        self._headers = []
        self._target = b""
        self._body = []
        self._body_bytes = 0
        self._head_bytes = 0
        self._in_head = True
        self._is_between_requests = False
        self.deadline_s = self._server.loop.time() + self._server.limits.head_timeout_s

    def on_url(self, target: bytes) -> None:
        self._target += target
        self._count_head_bytes(len(target))

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # Trailers say nothing that a router needs.
        self._headers.append((name, value))
        self._count_head_bytes(len(name) + len(value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._parser.get_method() == b"CONNECT":
            self._refuse(405, "this is not a proxy for CONNECT")
        length: bytes | None = None
        has_host = False
        expects_continue = False
        is_chunked = False
        for name, value in self._headers:
            lowered = name.lower()
            if lowered == b"content-length":
                length = value
            elif lowered == b"host":
                if has_host:
                    self._refuse(400, "the request has two Host headers")
                has_host = True
            elif lowered == b"expect":
                if value.lower() != b"100-continue":
                    self._refuse(417, "the only expectation that can be met is 100-continue")
                expects_continue = True
            elif lowered == b"transfer-encoding":
                is_chunked = True
        is_http_1_0 = self._parser.get_http_version() == "1.0"
        if not is_http_1_0 and not has_host:
            self._refuse(400, "the request has no Host header")
        if is_http_1_0 and is_chunked:
            self._refuse(400, "HTTP/1.0 knows no Transfer-Encoding")
        if length is not None and int(length) > self._server.limits.body_bytes:
            self._refuse(413, f"the body is longer than {self._server.limits.body_bytes} bytes")
        if expects_continue and not is_http_1_0 and self._response is None and not self._waiting:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._body.append(data)
        self._body_bytes += len(data)
        if self._body_bytes > self._server.limits.body_bytes:
            self._refuse(413, f"the body is longer than {self._server.limits.body_bytes} bytes")
        self.deadline_s = self._server.loop.time() + self._server.limits.body_timeout_s

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return  # The parser stops here, and the body is still to come.
        self.deadline_s = inf
        self._is_between_requests = True
        body = self._body
        self._waiting.append(
            HttpRequest(
                self._parser.get_method(),
                self._target,
                self._headers,
                body[0] if len(body) == 1 else b"".join(body),
                self._parser.get_http_version() == "1.0",
                self._parser.should_keep_alive(),
            )
        )
        self._body = []

    # Answering

    def _answer_next(self) -> None:
        """Hand the next request to the handler. Loops, since an answer may be complete at once."""
        while self._waiting and self._response is None and not self._is_closing:
            request = self._waiting.popleft()
            response = Response(self._transport, request, self._on_finish)
            if self._server.is_stopping:
                response.keep_alive = False
            self._response = response
            client_gone = self._server.handler.handle(request, response)
            # Finished already: `_on_finish` has run, and another request may be under way.
            if self._response is response:
                self._client_gone = client_gone
                if self._is_writing_paused and client_gone is not None:
                    client_gone.pause()
        self._limit_reading()
        if self._response is None and self._refusal is not None:
            self._send_refusal()

    def _on_finish(self, response: Response) -> None:
        self._response = None
        self._client_gone = None
        if not response.keep_alive or self._server.is_stopping:
            self._transport.close()
            self._is_closing = True
            return
        if self._waiting or self._refusal is not None:
            # Not from inside the finished answer's own code.
            self._server.loop.call_soon(self._answer_next)
        else:
            self._limit_reading()
            self._wait_for_request()

    def close_when_idle(self) -> None:
        """Close now, or after the answer that is under way."""
        if self._response is None and not self._waiting:
            self._transport.close()
        elif self._response is not None and not self._response.started:
            self._response.keep_alive = False

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def on_deadline(self) -> None:
        """Close an idle connection; refuse a request that does not come to its end."""
        if self._refusal is not None:
            self._transport.abort()
        elif self._response is not None:
            # The next request waits for the client, who may be waiting for this answer.
            self.deadline_s = self._server.loop.time() + self._server.limits.body_timeout_s
        elif self._is_between_requests:
            self._transport.close()
        else:
            self._refusal = (408, "the request did not arrive in time")
            self._send_refusal()

    # Reading

    def _wait_for_request(self) -> None:
        if self._is_between_requests:
            self.deadline_s = self._server.loop.time() + self._server.limits.keep_alive_s

    def _limit_reading(self) -> None:
        should_read = len(self._waiting) < self._server.limits.pipelined_requests
        if should_read != self._is_reading and not self._transport.is_closing():
            self._is_reading = should_read
            if should_read:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _count_head_bytes(self, count: int) -> None:
        self._head_bytes += count + 4
        if self._head_bytes > self._server.limits.head_bytes or len(self._headers) > self._server.limits.headers:
            limits = self._server.limits
            self._refuse(431, f"the head is longer than {limits.head_bytes} bytes or {limits.headers} headers")

    def _continue_without_upgrade(self, rest: bytes) -> None:
        """Read on as if the client had not offered to change the protocol, which a server may ignore (RFC 9110, 7.8).

        The parser takes everything after the head for the other protocol. A second one gets the head without the offer.
        """
        head = [b"%b %b HTTP/1.1\r\n" % (self._parser.get_method(), self._target)]
        for name, value in self._headers:
            if name.lower() not in (b"upgrade", b"http2-settings", b"connection", b"expect"):
                head.append(b"%b: %b\r\n" % (name, value))
        head.append(b"\r\n")
        self._parser = httptools.HttpRequestParser(self)
        self.data_received(b"".join(head) + rest)

    def _refuse(self, status: int, message: str) -> None:
        self._refusal = (status, message)
        raise _Refused

    def _send_refusal(self) -> None:
        assert self._refusal is not None
        status, message = self._refusal
        body = error_object(status, message)
        self._transport.write(
            b"%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (status_line(status), len(body), body)
        )
        self._is_closing = True
        # With unread bytes in the socket a close would reset the connection, and the client might never see the
        # answer: read on for a moment, and throw away.
        self._transport.write_eof()
        self.deadline_s = self._server.loop.time() + LINGER_S
