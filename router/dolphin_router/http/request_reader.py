"""Reading requests out of a client's bytes, and saying what is wrong with what is none."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import httptools

from .limits import HttpLimits
from .request import Headers, HttpRequest

FRAMING_PER_BYTE = 8
"""Bytes of chunk sizes, extensions and trailers allowed for each byte of a chunked body; chunks of one byte take 5."""

_SMALL_PIECE_BYTES = 4096

_NOT_OFFERED_AGAIN = frozenset({b"connection", b"expect", b"http2-settings", b"upgrade"})


class Refusal(NamedTuple):
    """Why nothing more is read from a client."""

    status: int
    message: str


class _Refused(Exception):
    """Raised inside the parser's callbacks to stop it."""


class RequestReader:
    """Bytes in, whole requests out. Knows nothing of sockets and time.

    Never holds more than about ``head_bytes + body_bytes`` of a request that is being read.
    """

    def __init__(self) -> None:
        self.requests: deque[HttpRequest] = deque()
        """Complete and not taken yet."""
        self.waiting_bytes = 0
        """Of the bodies of :attr:`requests`."""
        self.refusal: Refusal | None = None
        """Once there is one, nothing more can be read."""
        self.begun = 0
        """Requests that have begun, complete or not."""
        self.is_between_requests = True
        self.is_in_head = False
        self.awaits_continue = False
        """The client waits with its body for an interim answer."""
        self._parser = httptools.HttpRequestParser(self)
        self._limits = HttpLimits()
        self._method = b""
        self._target = b""
        self._is_http_1_0 = False
        self._headers: Headers = []
        self._head_bytes = 0
        self._pieces: list[bytes | bytearray] = []
        """Of the body."""
        self._body_bytes = 0
        self._raw_bytes = 0

    def feed(self, data: bytes, limits: HttpLimits) -> None:
        """Read on."""
        if self.refusal is not None:
            return
        self._limits = limits
        begun = self.begun
        rest: bytes | None = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
        except httptools.HttpParserCallbackError:
            if not self._has_refused():
                raise
            return
        except httptools.HttpParserError as error:
            self.refusal = Refusal(400, f"not a valid HTTP/1.1 request: {error}")
            return
        if rest is not None:
            self._read_on_without_upgrade(rest, limits)
            return
        if not self.is_between_requests and begun == self.begun:
            self._count_raw_bytes(len(data))

    def _has_refused(self) -> bool:
        # A method of its own: mypyc would take for granted that there is no refusal, as before the call.
        return self.refusal is not None

    def take(self) -> HttpRequest:
        """Return the next complete request."""
        request = self.requests.popleft()
        self.waiting_bytes -= len(request.body)
        return request

    # Parser callbacks

    def on_message_begin(self) -> None:
        self.begun += 1
        self.is_between_requests = False
        self.is_in_head = True
        self._target = b""
        self._headers = []
        self._head_bytes = 0
        self._pieces = []
        self._body_bytes = 0
        self._raw_bytes = 0

    def on_url(self, target: bytes) -> None:
        self._target += target
        self._head_bytes += len(target) + 4
        if self._head_bytes > self._limits.head_bytes:
            self._refuse(*_head_refusal(self._limits))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.is_in_head:
            self._headers.append((name, value))
            self._head_bytes += len(name) + len(value) + 4
            limits = self._limits
            if self._head_bytes > limits.head_bytes or len(self._headers) > limits.headers:
                self._refuse(*_head_refusal(limits))
        # Trailers say nothing that a router needs.

    def on_headers_complete(self) -> None:
        self.is_in_head = False
        self._method = self._parser.get_method()
        if self._method == b"CONNECT":
            self._refuse(405, "this is not a proxy for CONNECT")
        version = self._parser.get_http_version()
        self._is_http_1_0 = version == "1.0"
        if version != "1.1" and version != "1.0":
            self._refuse(505, "this server speaks HTTP/1.1")
        if self._target[:1] != b"/":
            self._target = _origin_form(self._target)
        if b"#" in self._target:
            self._refuse(400, "the target has a fragment")
        length: int | None = None
        hosts = 0
        expects_continue = False
        is_chunked = False
        for name, value in self._headers:
            lowered = name.lower()
            if lowered == b"content-length":
                length = int(value)
            elif lowered == b"host":
                hosts += 1
            elif lowered == b"expect":
                if value.strip().lower() != b"100-continue":
                    self._refuse(417, "the only expectation that can be met is 100-continue")
                expects_continue = True
            elif lowered == b"transfer-encoding":
                if version == "1.0":
                    self._refuse(400, "HTTP/1.0 knows no Transfer-Encoding")
                if value.strip().lower() != b"chunked":
                    self._refuse(501, "the only Transfer-Encoding that can be read is chunked")
                is_chunked = True
        if hosts > 1:
            self._refuse(400, "the request has two Host headers")
        if not hosts and version == "1.1":
            self._refuse(400, "the request has no Host header")
        if length is not None and length > self._limits.body_bytes:
            self._refuse_body()
        self.awaits_continue = expects_continue and version == "1.1" and (is_chunked or bool(length))

    def on_body(self, data: bytes) -> None:
        self.awaits_continue = False
        pieces = self._pieces
        if not pieces or len(data) >= _SMALL_PIECE_BYTES:
            pieces.append(data)
        else:
            # A growing array: a list would cost forty times the bytes that a client sends in chunks of one.
            last = pieces[-1]
            if isinstance(last, bytes):
                last = bytearray(last)
                pieces[-1] = last
            last += data
        self._body_bytes += len(data)
        if self._body_bytes > self._limits.body_bytes:
            self._refuse_body()

    def on_message_complete(self) -> None:
        parser = self._parser
        if parser.should_upgrade():
            return  # The parser stops here, and the body is still to come.
        self.is_between_requests = True
        self.awaits_continue = False
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 and isinstance(pieces[0], bytes) else b"".join(pieces)
        self._pieces = []
        self.waiting_bytes += len(body)
        self.requests.append(
            HttpRequest(
                self._method,
                self._target,
                self._headers,
                body,
                self._is_http_1_0,
                parser.should_keep_alive(),
            )
        )

    # Limits

    def _count_raw_bytes(self, count: int) -> None:
        """Bound what the parser keeps to itself, such as a header that does not end, and what it throws away.

        Only reads that lie within one request count, so that what came before it never does.
        """
        self._raw_bytes += count
        limits = self._limits
        if self.is_in_head:
            if self._raw_bytes > limits.head_bytes:
                self.refusal = _head_refusal(limits)
            return
        body_bytes = self._body_bytes
        if self._raw_bytes - body_bytes > 2 * limits.head_bytes + FRAMING_PER_BYTE * body_bytes:
            self.refusal = Refusal(413, "the body's chunks hold more framing than content")

    def _refuse(self, status: int, message: str) -> None:
        self.refusal = Refusal(status, message)
        raise _Refused

    def _refuse_body(self) -> None:
        self._refuse(413, f"the body is longer than {self._limits.body_bytes} bytes")

    # Offers to change the protocol

    def _read_on_without_upgrade(self, rest: bytes, limits: HttpLimits) -> None:
        """Read on as if the client had not offered another protocol, which a server may ignore (RFC 9110, 7.8).

        The parser takes everything after the head for the other protocol. A second one gets the head without the offer.
        """
        awaits_continue = self.awaits_continue
        old = self._parser
        head = [b"%b %b HTTP/%b\r\n" % (old.get_method(), self._target, old.get_http_version().encode())]
        for name, value in self._headers:
            lowered = name.lower()
            if lowered == b"connection":
                options = [option.strip() for option in value.split(b",")]
                kept = [option for option in options if option.lower() not in (b"upgrade", b"http2-settings", b"")]
                if kept:
                    head.append(b"%b: %b\r\n" % (name, b", ".join(kept)))
            elif lowered not in _NOT_OFFERED_AGAIN:
                head.append(b"%b: %b\r\n" % (name, value))
        head.append(b"\r\n")
        self._parser = httptools.HttpRequestParser(self)
        self.begun -= 1
        self.feed(b"".join(head), limits)
        self.awaits_continue = awaits_continue
        if rest:
            self.feed(rest, limits)


def _origin_form(target: bytes) -> bytes:
    """Return a target in absolute form without scheme and authority (RFC 9112, 3.2.2); any other as it is."""
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        return target
    for index, character in enumerate(rest):
        if character in b"/?#":
            return rest[index:] if character == b"/"[0] else b"/" + rest[index:]
    return b"/"


def _head_refusal(limits: HttpLimits) -> Refusal:
    return Refusal(431, f"the head is longer than {limits.head_bytes} bytes or {limits.headers} headers")
