"""What is no correct request is refused with a 4xx or 5xx of its own, closes the connection, and reaches no worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_client import BODY, LOOPS, Connection, CutAnswer, Stage, chunked, completion, play, request

from dolphin_router.http.half_close import half_close
from dolphin_router.http.limits import HttpLimits

START = b"POST /v1/completions HTTP/1.1\r\nHost: router\r\n"
SMUGGLED = b"GET /v1/smuggled HTTP/1.1\r\nHost: router\r\n\r\n"
CHUNKED = START + b"Transfer-Encoding: chunked\r\n\r\n"
SIZED = START + b"Content-Length: %d\r\n" % len(BODY)

SMALL = HttpLimits(head_bytes=2_000, headers=20, body_bytes=50_000, linger_s=0.3)


HURRY = HttpLimits(head_timeout_s=0.25, body_timeout_s=0.25, keep_alive_s=0.25, linger_s=0.2)


@asynccontextmanager
async def dripping(connection: Connection, piece: bytes) -> AsyncIterator[asyncio.Task[None]]:
    async def drip() -> None:
        while True:
            await connection.send(piece)
            await asyncio.sleep(0.03)

    task = asyncio.create_task(drip())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"{}",
        b'{"prompt": "x", "stream": "yes"}',
        b'{"prompt": "x", "max_tokens": "many"}',
        b'{"prompt": "x", "n": []}',
        b'{"prompt": "x", "model": 7}',
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "x"} trailing',
        b'{"prompt": ' + b"[" * 100_000,
    ],
    ids=lambda body: repr(body[:30]),
)
def test_bodies_that_are_no_completion_are_refused_and_the_connection_stays(body: bytes) -> None:
    async def scene(stage: Stage) -> None:
        async with stage.connection() as connection:
            answer = await connection.ask(completion(body))
            assert answer.status == 400
            assert answer.json()["error"]["type"] == "invalid_request_error"
            assert stage.worker.requests == []
            assert (await connection.ask(completion())).status == 200

    play(scene)


BAD: dict[str, tuple[bytes, set[int]]] = {
    "both lengths": (SIZED + b"Transfer-Encoding: chunked\r\n\r\n" + chunked([BODY]), {400}),
    "both lengths, the other way round": (
        START + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n" + chunked([BODY]),
        {400},
    ),
    "two equal lengths": (SIZED + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY, {400}),
    "two lengths": (SIZED + b"content-length: 3\r\n\r\n" + BODY, {400}),
    "a list of lengths": (START + b"Content-Length: 5, 5\r\n\r\n12345", {400}),
    "a signed length": (START + b"Content-Length: +5\r\n\r\n12345", {400}),
    "a negative length": (START + b"Content-Length: -5\r\n\r\n12345", {400}),
    "a hexadecimal length": (START + b"Content-Length: 0x5\r\n\r\n12345", {400}),
    "an empty length": (START + b"Content-Length:\r\n\r\n", {400}),
    "an endless length": (START + b"Content-Length: 99999999999999999999999\r\n\r\n", {400}),
    "a space before the colon": (START + b"Content-Length : 5\r\n\r\n12345", {400}),
    "compressed chunks": (START + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + chunked([BODY]), {501}),
    "chunked twice": (START + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n" + chunked([BODY]), {400}),
    "chunked in one list twice": (START + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + chunked([BODY]), {400}),
    "almost chunked": (START + b"Transfer-Encoding: xchunked\r\n\r\n" + chunked([BODY]), {400, 501}),
    "chunked in quotes": (START + b'Transfer-Encoding: "chunked"\r\n\r\n' + chunked([BODY]), {400, 501}),
    "chunked behind a tab": (START + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + chunked([BODY]), {400, 501}),
    "identity": (START + b"Transfer-Encoding: identity\r\n\r\n" + BODY, {400, 501}),
    "an encoding of HTTP/1.0": (
        b"POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked([BODY]),
        {400},
    ),
    "a chunk size with a space": (CHUNKED + b"5 \r\n12345\r\n0\r\n\r\n", {400}),
    "a chunk size with a sign": (CHUNKED + b"+5\r\n12345\r\n0\r\n\r\n", {400}),
    "a chunk size with a prefix": (CHUNKED + b"0x5\r\n12345\r\n0\r\n\r\n", {400}),
    "a chunk size of nothing": (CHUNKED + b"\r\n12345\r\n0\r\n\r\n", {400}),
    "a chunk size with an underscore": (CHUNKED + b"1_0\r\n12345\r\n0\r\n\r\n", {400}),
    "an endless chunk size": (CHUNKED + b"FFFFFFFFFFFFFFFFF\r\n12345\r\n0\r\n\r\n", {400}),
    "a chunk that is too short": (CHUNKED + b"6\r\n12345\r\n0\r\n\r\n", {400}),
    "a chunk that is too long": (CHUNKED + b"4\r\n12345\r\n0\r\n\r\n", {400}),
    "a chunk ended by LF": (CHUNKED + b"5\n12345\r\n0\r\n\r\n", {400}),
    "an extension with LF": (CHUNKED + b"5;a\nb\r\n12345\r\n0\r\n\r\n", {400}),
    "an extension with CR": (CHUNKED + b"5;a\rb\r\n12345\r\n0\r\n\r\n", {400}),
    "a trailer with a length": (CHUNKED + b"5\r\n12345\r\n0\r\nContent-Length: 5\r\n\r\n", {400}),
    "a folded header": (SIZED + b"X-A: b\r\n c\r\n\r\n" + BODY, {400}),
    "a folded encoding": (SIZED + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + BODY, {400}),
    "a folded first header": (b"POST / HTTP/1.1\r\n X-A: b\r\nHost: router\r\n\r\n", {400}),
    "a bare LF after a header": (SIZED + b"X-A: b\nX-B: c\r\n\r\n" + BODY, {400}),
    "a bare LF at the end": (SIZED + b"\n" + BODY, {400}),
    "bare LFs": (b"GET /v1/models HTTP/1.1\nHost: router\n\n", {400}),
    "a bare CR": (SIZED + b"X-A: b\rX-B: c\r\n\r\n" + BODY, {400}),
    "NUL in a value": (SIZED + b"X-A: b\0c\r\n\r\n" + BODY, {400}),
    "NUL in a name": (SIZED + b"X\0A: b\r\n\r\n" + BODY, {400}),
    "NUL in the target": (b"GET /v1/mod\0els HTTP/1.1\r\nHost: router\r\n\r\n", {400}),
    "no name": (SIZED + b": b\r\n\r\n" + BODY, {400}),
    "no colon": (SIZED + b"nonsense\r\n\r\n" + BODY, {400}),
    "no Host": (b"GET /v1/models HTTP/1.1\r\n\r\n", {400}),
    "two Hosts": (b"GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", {400}),
    "a fragment": (b"POST /v1/completions#x HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", {400}),
    "a space in the target": (b"GET /v1/mod els HTTP/1.1\r\nHost: router\r\n\r\n", {400}),
    "no version": (b"GET /v1/models\r\n\r\n", {400, 505}),
    "version 0.9": (b"GET /v1/models HTTP/0.9\r\n\r\n", {400, 505}),
    "version 2.0": (b"GET /v1/models HTTP/2.0\r\nHost: router\r\n\r\n", {505}),
    "version 9.9": (b"GET /v1/models HTTP/9.9\r\nHost: router\r\n\r\n", {400}),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\4\0\0\0\0\0", {400, 505}),
    "TLS": (bytes.fromhex("16030100c8010000c40303") + bytes(range(190)), {400}),
    "an unknown method": (b"BREW /v1/models HTTP/1.1\r\nHost: router\r\n\r\n", {400}),
    "a method in small letters": (b"get /v1/models HTTP/1.1\r\nHost: router\r\n\r\n", {400}),
    "garbage": (b"\x80\x81\x82 nonsense \xff\r\n\r\n", {400}),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_refused_and_nothing_behind_them_is_read(name: str) -> None:
    data, statuses = BAD[name]

    async def scene(stage: Stage) -> None:
        async with stage.connection() as connection:
            await connection.send(data + SMUGGLED)
            answer = await connection.answer()
            assert answer.status in statuses
            assert answer.values(b"connection") == [b"close"]
            assert answer.json()["error"]["code"] == answer.status
            assert await connection.is_closed()
        assert stage.worker.requests == []
        assert await stage.works()

    play(scene)


@pytest.mark.parametrize("loop", LOOPS)
def test_heads_that_are_too_long_are_refused(loop: str) -> None:
    async def scene(stage: Stage) -> None:
        stage.router.server.limits = SMALL
        long = [
            completion(headers=[(b"X-A", b"b" * 2_000)]),
            completion(headers=[(b"X-%d" % number, b"b" * 120) for number in range(18)]),
            completion(headers=[(b"X-%d" % number, b"") for number in range(19)]),
            request(b"GET", b"/v1/models?" + b"a" * 2_000),
        ]
        for data in long:
            assert (await stage.ask(data)).status == 431
        assert (await stage.ask(completion(headers=[(b"X-A", b"b" * 1_800)]))).status == 200
        assert (await stage.ask(completion(headers=[(b"X-%d" % number, b"") for number in range(17)]))).status == 200

    play(scene, loop=loop)


@pytest.mark.parametrize("start", [b"GET /v1/models HTTP/1.1\r\nX-A: ", b"GET /v1/models HTTP/1.1\r\nX-", b"GET /v1/"])
def test_heads_that_do_not_end_are_refused_before_they_do(start: bytes) -> None:
    async def scene(stage: Stage) -> None:
        stage.router.server.limits = SMALL
        async with stage.connection() as connection:
            await connection.send(start, *[b"a" * 100] * 30)
            assert (await connection.answer()).status == 431

    play(scene)


def test_framing_without_content_is_refused_before_it_ends() -> None:
    async def scene(stage: Stage) -> None:
        stage.router.server.limits = SMALL
        for start, piece in [
            (CHUNKED + b"5;a=", b"a" * 1_000),
            (CHUNKED + b"5\r\n12345\r\n0\r\nX-A: ", b"a" * 1_000),
            (CHUNKED + b"5\r\n12345\r\n0\r\n", b"X-A: b\r\n" * 100),
        ]:
            async with stage.connection() as connection:
                await connection.send(start, *[piece] * 50)
                assert (await connection.answer()).status == 413
        # However small the chunks are, a body that is not too long arrives.
        assert (await stage.ask(CHUNKED + chunked([b"%c" % byte for byte in BODY] + [b" "] * 20_000))).status == 200

    play(scene)


def test_bodies_of_the_greatest_length_arrive_and_longer_ones_do_not() -> None:
    async def scene(stage: Stage) -> None:
        stage.router.server.limits = SMALL
        body = BODY + b" " * (SMALL.body_bytes - len(BODY))
        assert (await stage.ask(completion(body))).status == 200
        assert (await stage.ask(CHUNKED + chunked([body]))).status == 200
        assert (await stage.ask(CHUNKED + chunked([body[:10], body[10:]]))).status == 200
        assert (await stage.ask(CHUNKED + chunked([body + b" "]))).status == 413
        assert (await stage.ask(CHUNKED + chunked([body[:10], body[10:], b" "]))).status == 413
        async with stage.connection() as connection:
            head = START + b"Content-Length: %d\r\n\r\n" % (SMALL.body_bytes + 1)
            assert (await connection.ask(head)).status == 413  # Before any of the body has come.
        assert len(stage.worker.requests) == 3

    play(scene)


@pytest.mark.parametrize("loop", LOOPS)
def test_who_is_refused_can_read_it_while_still_sending(loop: str) -> None:
    async def scene(stage: Stage) -> None:
        stage.router.server.limits = SMALL
        for head in (START + b"Content-Length: 100000000\r\n\r\n", CHUNKED + b"5f5e100\r\n"):
            async with stage.connection() as connection:
                await connection.send(head, *[b"x" * 65_536] * 100)
                assert (await connection.answer()).status == 413
                assert await connection.is_closed()
        assert stage.worker.requests == []

    play(scene, loop=loop)


def test_who_goes_on_sending_after_a_refusal_is_cut() -> None:
    async def scene(stage: Stage) -> None:
        stage.router.server.limits = replace(SMALL, longest_linger_s=0.3)
        async with stage.connection() as connection:
            await connection.send(START + b"Content-Length: 100000000\r\n\r\n")
            async with dripping(connection, b"x" * 1_000) as drip:
                with pytest.raises(ConnectionError):
                    await drip

    play(scene)


@pytest.mark.parametrize("start", [b"G", b"GET /v1/models HTTP/1.1\r\nX-A: b\r\n", SIZED + b"\r\n" + BODY[:5], CHUNKED])
def test_requests_that_stall_are_refused_in_time(start: bytes) -> None:
    async def scene(stage: Stage) -> None:
        stage.router.server.limits = HURRY
        async with stage.connection() as connection:
            await connection.send(start)
            begun_s = asyncio.get_running_loop().time()
            assert (await connection.answer()).status == 408
            assert asyncio.get_running_loop().time() - begun_s < 2.0
            assert await connection.is_closed()

    play(scene)


def test_a_head_that_drips_is_refused_and_a_body_that_drips_is_read() -> None:
    async def scene(stage: Stage) -> None:
        stage.router.server.limits = HURRY
        async with stage.connection() as connection:
            await connection.send(b"GET /v1/models HTTP/1.1\r\n")
            async with dripping(connection, b"X-A: b\r\n"):
                assert (await connection.answer()).status == 408
        async with stage.connection() as connection:
            await connection.send(SIZED + b"\r\n")
            for start in range(0, len(BODY), 3):
                await connection.send(BODY[start : start + 3])
                await asyncio.sleep(0.03)
            assert (await connection.answer()).status == 200

    play(scene)


def test_idle_connections_are_closed() -> None:
    async def scene(stage: Stage) -> None:
        stage.router.server.limits = HURRY
        async with stage.connection() as fresh, stage.connection() as used:
            assert (await used.ask(completion())).status == 200
            assert await fresh.is_closed()
            assert await used.is_closed()

    play(scene)


def test_an_answer_that_takes_long_is_not_cut_by_the_limits_on_requests() -> None:
    done = asyncio.Event()

    async def scene(stage: Stage) -> None:
        async def slow(asked: object, peer: object) -> None:
            await asyncio.sleep(0.8)
            await stage_answer(peer)

        async def stage_answer(peer: object) -> None:
            await peer.answer()  # type: ignore[attr-defined]
            done.set()

        stage.worker.script = slow
        stage.router.server.limits = HURRY
        for behind in (b"", b"nonsense\r\n\r\n", b"GET /v1/mod", SIZED + b"\r\n" + BODY[:9]):
            async with stage.connection() as connection:
                assert (await connection.ask(completion() + behind)).status == 200

    play(scene)


def mutations() -> st.SearchStrategy[bytes]:
    valid = st.sampled_from(
        [
            completion(),
            completion(headers=[(b"Connection", b"keep-alive"), (b"X-A", b"b")]),
            CHUNKED + chunked([BODY[:4], BODY[4:]], extension=b";a=b", trailers=b"T: u\r\n"),
            request(b"GET", b"/v1/models?x=y"),
            completion(version=b"1.0"),
            completion(headers=[(b"Upgrade", b"h2c"), (b"Connection", b"Upgrade")]),
        ]
    )
    pieces = st.sampled_from(
        [
            *(b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b";", b"0", b"-", b"5", b"chunked", b",", b"\xff"),
            *(b"\r\n\r\n", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Host: x\r\n"),
            b"GET /v1/a HTTP/1.1\r\n",
        ]
    )
    change = st.tuples(st.integers(0, 400), st.integers(0, 6), pieces | st.binary(max_size=6))

    def apply(data: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
        for place, removed, added in changes:
            place %= len(data) + 1
            data = data[:place] + added + data[place + removed :]
        return data

    return st.builds(apply, st.lists(valid, min_size=1, max_size=3).map(b"".join), st.lists(change, max_size=4))


def test_whatever_comes_the_router_answers_or_closes_and_lives_on() -> None:
    async def scene(stage: Stage) -> None:
        loop = asyncio.get_running_loop()
        stage.router.server.limits = HttpLimits(body_bytes=100_000, linger_s=0.1)

        async def one(data: bytes, cut: int) -> None:
            async with stage.connection() as connection:
                cut %= len(data) + 1
                await connection.send(data[:cut], data[cut:])
                # Whatever the router still waits for does not come. The router may have closed already, which uvloop
                # would report as an error of this program.
                half_close(connection.writer.transport)
                try:
                    while True:
                        answer = await connection.head()
                        assert 200 <= answer.status < 600 or answer.status == 100
                        if answer.status != 100:
                            length = int(answer.values(b"content-length")[0])
                            await connection.reader.readexactly(length)
                except (CutAnswer, asyncio.IncompleteReadError, ConnectionError):
                    pass
            assert await stage.works()

        def check(data: bytes, cut: int) -> None:
            asyncio.run_coroutine_threadsafe(one(data, cut), loop).result()

        test = given(mutations(), st.integers(0, 1_000))(
            settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))(check)
        )
        await loop.run_in_executor(None, test)

    play(scene)
