"""Requests are read out of bytes the same however the bytes are cut, and no more is held than the limits allow."""

from __future__ import annotations

import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolphin_router.http.limits import HttpLimits
from dolphin_router.http.request import HttpRequest
from dolphin_router.http.request_reader import RequestReader

LIMITS = HttpLimits()
TOKENS = st.text("abcdefgXYZ-", min_size=1, max_size=8).map(str.encode)
VALUES = st.text("abc xyz,;=/\t", max_size=12).map(lambda text: text.strip().encode())
FRAMING = {b"content-length", b"transfer-encoding", b"host", b"connection", b"upgrade", b"expect"}
HEADERS = st.lists(st.tuples(TOKENS, VALUES).filter(lambda header: header[0].lower() not in FRAMING), max_size=4)
OFFER = b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMA\r\n"


def read(*pieces: bytes, limits: HttpLimits = LIMITS) -> RequestReader:
    reader = RequestReader()
    for piece in pieces:
        reader.feed(piece, limits)
    return reader


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, tuple[bytes, bytes, bytes]]:
    """A valid request, and method, target and body that it has."""
    method = draw(st.sampled_from([b"POST", b"GET", b"PUT", b"DELETE"]))
    target = b"/" + draw(st.text("abc/?&=%20", max_size=12)).encode()
    head = b"%b %b HTTP/1.1\r\nHost: h\r\n" % (method, target)
    head += b"".join(b"%b: %b\r\n" % header for header in draw(HEADERS))
    if draw(st.booleans()):
        head += OFFER
    pieces = draw(st.lists(st.binary(min_size=1, max_size=20), max_size=4))
    framing = draw(st.sampled_from(["none", "length", "chunks"]))
    if framing == "none":
        return head + b"\r\n", (method, target, b"")
    body = b"".join(pieces)
    if framing == "length":
        return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body), (method, target, body)
    extension = draw(st.sampled_from([b"", b";a", b';a="b c"']))
    chunks = b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces)
    trailers = draw(st.sampled_from([b"", b"X-T: 1\r\n"]))
    data = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n" + trailers + b"\r\n"
    return data, (method, target, body)


@given(st.lists(requests(), min_size=1, max_size=4), st.lists(st.integers(1, 2_000), max_size=20))
@settings(max_examples=200, deadline=None)
def test_requests_are_the_same_wherever_they_are_cut(
    made: list[tuple[bytes, tuple[bytes, bytes, bytes]]], cuts: list[int]
) -> None:
    data = b"".join(each for each, _ in made)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    reader = read(*[data[start:end] for start, end in pairwise(places)])
    assert reader.refusal is None
    assert reader.is_between_requests
    assert reader.waiting_bytes == sum(len(body) for _, (_, _, body) in made)
    taken = [reader.take() for _ in made]
    assert [(each.method, each.target, each.body) for each in taken] == [expected for _, expected in made]
    assert all(each.keep_alive and not each.is_http_1_0 for each in taken)
    assert all(each.header(b"upgrade") is None for each in taken)
    assert (len(reader.requests), reader.waiting_bytes) == (0, 0)


@given(st.binary(max_size=300), st.lists(st.integers(1, 300), max_size=5))
@settings(max_examples=200, deadline=None)
def test_nonsense_is_refused_or_waited_for(data: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    reader = read(*[data[start:end] for start, end in pairwise(places)])
    if reader.refusal is not None:
        assert 400 <= reader.refusal.status < 600
        assert reader.refusal.message


def test_nothing_is_read_after_a_refusal() -> None:
    good = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
    reader = read(good + b"nonsense\r\n\r\n", good)
    assert reader.refusal is not None
    assert len(reader.requests) == 1


def test_headers_are_kept_as_they_were_sent() -> None:
    reader = read(b"GET / HTTP/1.1\r\nHost: h\r\nX-A: 1\r\nx-a: 2\r\n\r\n")
    request = reader.take()
    assert request.headers == [(b"Host", b"h"), (b"X-A", b"1"), (b"x-a", b"2")]
    assert request.header(b"x-a") == b"1"


@pytest.mark.parametrize("size", [1, 3, 1_000, 5_000])
def test_a_body_takes_little_more_memory_than_its_bytes(size: int) -> None:
    """In chunks of one byte too, where a list of pieces would take forty times as much."""
    reader = read(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunk = b"%x\r\n%b\r\n" % (size, b"x" * size)
    for _ in range(20):
        reader.feed(chunk * (10_000 // size), LIMITS)
    held = sys.getsizeof(reader._pieces) + sum(map(sys.getsizeof, reader._pieces))
    assert held < 2 * 200_000
    reader.feed(b"0\r\n\r\n", LIMITS)
    assert reader.take().body == b"x" * (20 * (10_000 // size) * size)


def test_the_limits_hold_from_one_piece_to_the_next() -> None:
    tight = HttpLimits(head_bytes=1_000, headers=10, body_bytes=1_000)
    start = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    cases = {
        431: [(b"GET /", b"a" * 100), (b"GET / HTTP/1.1\r\nX: ", b"a" * 100), (b"GET / HTTP/1.1\r\n", b"X: y\r\n")],
        413: [(start, b"1\r\nx\r\n"), (start + b"5;", b"a" * 100), (start + b"0\r\n", b"T: u\r\n" * 10)],
    }
    for status, pairs in cases.items():
        for first, piece in pairs:
            reader = read(first, limits=tight)
            fed = 0
            while reader.refusal is None:
                reader.feed(piece, tight)
                fed += len(piece)
                assert fed < 20_000
            assert reader.refusal.status == status


def test_a_head_behind_a_long_body_is_not_blamed_for_it() -> None:
    tight = HttpLimits(head_bytes=200, body_bytes=100_000)
    body = b"x" * 50_000
    first = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    second = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
    reader = read(first + second[:9], second[9:], limits=tight)
    assert reader.refusal is None
    assert len(reader.requests) == 2


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/v1/completions?a=%2F", b"/v1/completions"),
        (b"/v1/%63ompletions", b"/v1/completions"),
        (b"/a%2", b"/a%2"),
        (b"/a%zz", b"/a%zz"),
        (b"*", b"*"),
        (b"/", b"/"),
    ],
)
def test_paths(target: bytes, path: bytes) -> None:
    assert HttpRequest(b"GET", target, [], b"", False, True).path == path


@pytest.mark.parametrize(
    ("sent", "target"),
    [
        (b"http://h", b"/"),
        (b"http://h/", b"/"),
        (b"http://u:p@h:80/a/b?c=d", b"/a/b?c=d"),
        (b"HTTPS://h?c=http://x/y", b"/?c=http://x/y"),
        (b"/a?b=http://x", b"/a?b=http://x"),
        (b"//a", b"//a"),
    ],
)
def test_targets_are_given_in_origin_form(sent: bytes, target: bytes) -> None:
    assert read(b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % sent).take().target == target


@pytest.mark.parametrize(
    ("head", "awaits"),
    [
        (b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n", True),
        (b"Expect: 100-Continue \r\nTransfer-Encoding: chunked\r\n\r\n", True),
        (b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\na", False),
        (b"Expect: 100-continue\r\nContent-Length: 0\r\n\r\n", False),
        (b"Expect: 100-continue\r\n\r\n", False),
        (b"Content-Length: 3\r\n\r\n", False),
        (OFFER + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n", True),
        (OFFER + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\nab", False),
    ],
)
def test_who_waits_for_100_continue(head: bytes, awaits: bool) -> None:
    assert read(b"POST / HTTP/1.1\r\nHost: h\r\n" + head).awaits_continue is awaits


@pytest.mark.parametrize(
    "behind",
    [b"POST /v1/completions HTTP/1.1\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", b"nonsense\r\n\r\n"],
)
def test_what_is_wrong_behind_an_ignored_offer_of_another_protocol_is_refused(behind: bytes) -> None:
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: 2\r\n\r\n"
    )
    reader = RequestReader()
    reader.feed(head + b"{}" + behind, HttpLimits())
    assert [request.body for request in reader.requests] == [b"{}"]
    assert reader.refusal is not None
