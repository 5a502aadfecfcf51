"""An answer is framed as its client understands it, and written once."""

from __future__ import annotations

from typing import Any

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolphin_router.http.errors import error_event, error_object
from dolphin_router.http.request import HttpRequest
from dolphin_router.http.response import Response
from dolphin_router.http.status import status_line


class Wire:
    """Stands in for a transport."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.is_aborted = False
        self.options: list[Any] = []

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def abort(self) -> None:
        self.is_aborted = True

    def get_extra_info(self, name: str) -> Any:
        return self

    def setsockopt(self, *option: Any) -> None:
        self.options.append(option)


def made(
    method: bytes = b"POST", *, old: bool = False, keep_alive: bool = True
) -> tuple[Response, Any, list[Response]]:
    wire: Any = Wire()
    finished: list[Response] = []
    request = HttpRequest(method, b"/", [], b"", old, keep_alive)
    return Response(wire, request, finished.append), wire, finished


class Parsed:
    def __init__(self, data: bytes) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.is_complete = False
        self._parser = httptools.HttpResponseParser(self)
        self._parser.feed_data(data)

    @property
    def status(self) -> int:
        status: int = self._parser.get_status_code()
        return status

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name] = value

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.is_complete = True


@given(st.lists(st.binary(max_size=50), max_size=6), st.booleans(), st.booleans(), st.booleans())
@settings(deadline=None)
def test_a_client_reads_what_was_sent(pieces: list[bytes], sized: bool, old: bool, keep_alive: bool) -> None:
    response, wire, finished = made(old=old, keep_alive=keep_alive)
    body = b"".join(pieces)
    response.start(200, [(b"x-a", b"b")], length=len(body) if sized else None)
    for piece in pieces:
        response.send(piece)
    response.finish()
    response.finish()
    assert finished == [response]
    parsed = Parsed(b"".join(wire.sent))
    assert (parsed.status, parsed.body, parsed.headers[b"x-a"]) == (200, body, b"b")
    # Where neither length nor chunks end the answer the connection must, whatever the client wanted.
    assert parsed.is_complete == (sized or not old)
    assert response.keep_alive == (keep_alive and parsed.is_complete)
    assert (parsed.headers.get(b"connection") == b"close") == (not response.keep_alive)


def test_head_and_first_piece_leave_in_one_packet() -> None:
    response, wire, _ = made()
    response.start(200, [], length=None)
    assert wire.sent == []
    response.send(b"abc")
    assert len(wire.sent) == 1
    assert wire.sent[0].endswith(b"\r\n\r\n3\r\nabc\r\n")


@pytest.mark.parametrize(
    ("method", "status", "length", "ends"),
    [
        (b"HEAD", 200, 5, b"content-length: 5\r\n\r\n"),
        (b"HEAD", 200, None, b"transfer-encoding: chunked\r\n\r\n"),
        (b"GET", 204, 5, b"204 No Content\r\n\r\n"),
        (b"GET", 304, None, b"304 Not Modified\r\n\r\n"),
    ],
)
def test_answers_without_a_body(method: bytes, status: int, length: int | None, ends: bytes) -> None:
    response, wire, finished = made(method)
    response.start(status, [], length=length)
    response.send(b"hello")
    response.finish()
    assert b"".join(wire.sent).endswith(ends)
    assert finished == [response]
    assert response.keep_alive


def test_a_client_that_has_left_is_sent_nothing() -> None:
    response, wire, finished = made()
    response.start(200, [], length=None)
    response.send(b"a")
    before = list(wire.sent)
    response.disconnect()
    response.send(b"b")
    response.finish()
    response.abandon()
    response.error(502, "late")
    assert wire.sent == before
    assert finished == []
    assert not wire.is_aborted


def test_an_abandoned_answer_never_looks_complete() -> None:
    for old, resets in ((False, False), (True, True)):
        response, wire, finished = made(old=old)
        response.start(200, [], length=None)
        response.send(b"a")
        response.abandon()
        response.finish()
        assert wire.is_aborted
        assert bool(wire.options) == resets
        assert not Parsed(b"".join(wire.sent)).is_complete
        assert finished == []


def test_errors_are_in_the_form_of_the_api() -> None:
    response, wire, _ = made()
    response.error(429, "full", [(b"retry-after", b"1")])
    parsed = Parsed(b"".join(wire.sent))
    assert (parsed.status, parsed.headers[b"retry-after"]) == (429, b"1")
    assert parsed.body == error_object(429, "full")
    assert b'"type":"rate_limit_error"' in parsed.body
    assert error_event(502, 'a "b"\n') == b"data: " + error_object(502, 'a "b"\n') + b"\n\n"
    assert b"\n" not in error_object(502, "a\nb")


@pytest.mark.parametrize(("status", "line"), [(200, b"HTTP/1.1 200 OK\r\n"), (599, b"HTTP/1.1 599 \r\n")])
def test_status_lines(status: int, line: bytes) -> None:
    assert status_line(status) == line
