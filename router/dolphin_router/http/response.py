"""Writing one response to a client."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable
from enum import Enum

from .errors import error_object
from .request import HttpRequest
from .status import status_line

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER for no time at all."""


class _Framing(Enum):
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"


class Response:
    """The answer to one request: first :meth:`start`, then :meth:`send` as often as needed, then :meth:`finish`.

    When the client has left, everything here does nothing, so that nobody needs to ask.
    """

    __slots__ = (
        "_finished",
        "_framing",
        "_has_body",
        "_head",
        "_on_finish",
        "_request",
        "_transport",
        "keep_alive",
        "started",
    )

    def __init__(
        self, transport: asyncio.Transport, request: HttpRequest, on_finish: Callable[[Response], None]
    ) -> None:
        self._transport = transport
        self._request = request
        self._on_finish = on_finish
        self._framing = _Framing.LENGTH
        self._has_body = request.method != b"HEAD"
        self._head = b""
        self._finished = False
        self.started = False
        self.keep_alive = request.keep_alive

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]], *, length: int | None) -> None:
        """Begin the answer.

        Args:
            status: the status code.
            headers: without those that frame the body or concern the connection.
            length: bytes of the body, none when it is not known yet.
        """
        self.started = True
        lines = [status_line(status)]
        lines.extend([b"%b: %b\r\n" % header for header in headers])
        if status == 204 or status == 304:
            self._has_body = False
        elif length is not None:
            lines.append(b"content-length: %d\r\n" % length)
        elif self._request.is_http_1_0:
            self._framing = _Framing.CLOSE
            self.keep_alive = False
        else:
            lines.append(b"transfer-encoding: chunked\r\n")
            self._framing = _Framing.CHUNKED
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        elif self._request.is_http_1_0:
            lines.append(b"connection: keep-alive\r\n")
        lines.append(b"\r\n")
        # Sent with the first piece of the body: one packet instead of two.
        self._head = b"".join(lines)

    def send(self, data: bytes) -> None:
        """Send a piece of the body. A :meth:`start` with a length obliges the caller to send exactly that much."""
        if not data or not self._has_body or self._finished:
            return
        head = self._head
        if self._framing is _Framing.CHUNKED:
            self._transport.write(b"%b%x\r\n%b\r\n" % (head, len(data), data))
        else:
            self._transport.write(head + data if head else data)
        if head:
            self._head = b""

    def finish(self) -> None:
        """End the answer."""
        if self._finished:
            return
        self._finished = True
        rest = self._head
        if self._framing is _Framing.CHUNKED and self._has_body:
            rest += b"0\r\n\r\n"
        if rest:
            self._transport.write(rest)
        self._on_finish(self)

    def disconnect(self) -> None:
        """Take note that the client has left."""
        self._finished = True

    def abandon(self) -> None:
        """Close the connection at once: the answer cannot be completed, and the client must see that it was cut."""
        if self._finished:
            return
        self._finished = True
        if self._framing is _Framing.CLOSE:
            # A close in good order would look like the end of the answer.
            raw = self._transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._transport.abort()

    def answer(self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Send a whole answer."""
        self.start(status, headers, length=len(body))
        self.send(body)
        self.finish()

    def error(self, status: int, message: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Send a whole answer with an error in OpenAI's form."""
        self.answer(status, error_object(status, message), [(b"content-type", b"application/json"), *headers])
