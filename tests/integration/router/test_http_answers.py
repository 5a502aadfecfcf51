"""A worker's answer reaches the client as it was meant, and nothing else does."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_client import BODY, LOOPS, STREAM_BODY, CutAnswer, Stage, completion, play, request
from router_under_test import until
from scripted_worker import (
    LAST_CHUNK,
    STREAM_HEAD,
    Peer,
    Script,
    WorkerRequest,
    chunk,
    event,
    scripted_worker,
    sized_answer,
)

from dolphin_router.http.upstream import IDLE_S, ConnectionPool
from dolphin_router.probes import get


def sends(*pieces: bytes, then_close: bool = False, then_reset: bool = False) -> Script:
    """A script that answers with these bytes."""

    async def script(asked: WorkerRequest, peer: Peer) -> None:
        await peer.send(*pieces)
        if then_close:
            peer.close()
        if then_reset:
            await asyncio.sleep(0.02)
            peer.reset()

    return script


STREAM = [chunk(event("a")), chunk(event("b") + event("c")), chunk(b"data: [DONE]\n\n")]
STREAM_CONTENT = event("a") + event("b") + event("c") + b"data: [DONE]\n\n"


@pytest.mark.parametrize("loop", LOOPS)
def test_streams_go_out_in_chunks_and_the_connection_stays(loop: str) -> None:
    async def scene(stage: Stage) -> None:
        async with stage.connection() as connection:
            for _ in range(2):
                answer = await connection.ask(completion(STREAM_BODY))
                assert answer.is_chunked
                assert answer.values(b"content-type") == [b"text/event-stream"]
                assert answer.body == STREAM_CONTENT

    play(scene, sends(STREAM_HEAD, *STREAM, LAST_CHUNK), loop=loop)


def test_streams_to_http_1_0_end_with_the_connection() -> None:
    async def scene(stage: Stage) -> None:
        async with stage.connection() as connection:
            keep_alive = [(b"Connection", b"keep-alive")]
            answer = await connection.ask(completion(STREAM_BODY, version=b"1.0", headers=keep_alive))
            assert not answer.values(b"transfer-encoding")
            assert not answer.values(b"content-length")
            assert answer.values(b"connection") == [b"close"]
            assert answer.body == STREAM_CONTENT

    play(scene, sends(STREAM_HEAD, *STREAM, LAST_CHUNK))


def test_a_cut_answer_never_looks_complete() -> None:
    """To HTTP/1.0 the end of the connection is the end of the answer: only a reset tells that it was cut."""
    large = b'{"a": "%b"}' % (b"x" * 2_000_000)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

    async def scene(stage: Stage) -> None:
        stage.worker.script = sends(head + b"Content-Length: 3000000\r\n\r\n" + large, then_close=True)
        with pytest.raises((CutAnswer, ConnectionError)):
            await stage.ask(completion())
        stage.worker.script = sends(
            head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(large), b"nonsense", then_reset=True
        )
        with pytest.raises((CutAnswer, ConnectionError)):
            await stage.ask(completion())
        with pytest.raises(ConnectionError):
            await stage.ask(completion(version=b"1.0"))

    play(scene)


def test_lengths_statuses_and_repeated_headers_are_kept() -> None:
    async def scene(stage: Stage) -> None:
        cookies = [(b"Set-Cookie", b"a=1"), (b"X-Other", b"o"), (b"Set-Cookie", b"b=2")]
        for status in (200, 201, 400, 404, 418, 429, 500, 503, 599):
            stage.worker.script = sends(sized_answer(b"abc", status=status, headers=cookies))
            answer = await stage.ask(completion())
            assert (answer.status, answer.body) == (status, b"abc")
            assert answer.values(b"content-length") == [b"3"]
            assert not answer.is_chunked
            assert answer.values(b"set-cookie") == [b"a=1", b"b=2"]

    play(scene)


@pytest.mark.parametrize("status", [204, 304])
def test_answers_without_a_body(status: int) -> None:
    async def scene(stage: Stage) -> None:
        async with stage.connection() as connection:
            for _ in range(2):
                answer = await connection.ask(request(b"GET", b"/v1/models"))
                assert answer.status == status
                assert not answer.values(b"content-length")
                assert not answer.values(b"transfer-encoding")
                assert answer.values(b"etag") == [b"x"]
        assert stage.worker.connections == 1

    play(scene, sends(b"HTTP/1.1 %d Nothing\r\nETag: x\r\n\r\n" % status))


def test_headers_that_concern_one_connection_are_dropped() -> None:
    dropped = [
        (b"Keep-Alive", b"timeout=5"),
        (b"Proxy-Authenticate", b"Basic"),
        (b"Proxy-Connection", b"keep-alive"),
        (b"TE", b"trailers"),
        (b"Trailer", b"X-T"),
        (b"Upgrade", b"h2c"),
        (b"X-Hop", b"1"),
    ]
    kept = [(b"X-End", b"2"), (b"Server", b"engine")]
    headers = [(b"Connection", b"X-Hop, keep-alive"), *dropped, *kept]

    async def scene(stage: Stage) -> None:
        answer = await stage.ask(completion())
        assert not answer.values(b"connection")
        for name, _ in dropped:
            assert not answer.values(name.lower()), name
        for name, value in kept:
            assert answer.values(name.lower()) == [value]

    play(scene, sends(sized_answer(b"{}", headers=headers)))


def test_headers_of_requests_that_concern_one_connection_are_dropped() -> None:
    async def scene(stage: Stage) -> None:
        headers = [
            (b"Connection", b"X-Hop"),
            (b"X-Hop", b"1"),
            (b"TE", b"trailers"),
            (b"Proxy-Authorization", b"Basic x"),
            (b"X-End", b"2"),
        ]
        await stage.ask(completion(headers=headers))
        asked = stage.worker.requests[0]
        for name in (b"connection", b"x-hop", b"te", b"proxy-authorization"):
            assert not asked.values(name), name
        assert asked.values(b"x-end") == [b"2"]

    play(scene)


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_answers_that_end_with_the_workers_connection(version: bytes) -> None:
    head = b"HTTP/%b 200 OK\r\nContent-Type: application/json\r\n" % version

    async def scene(stage: Stage) -> None:
        async with stage.connection() as connection:
            stage.worker.script = sends(head + b"\r\n", b'{"a"', b": 1}", then_close=True)
            for _ in range(2):
                answer = await connection.ask(completion())
                assert (answer.body, answer.values(b"content-length")) == (b'{"a": 1}', [b"8"])
            stage.worker.script = sends(
                head.replace(b"application/json", b"text/event-stream") + b"\r\n", event("a"), then_close=True
            )
            answer = await connection.ask(completion(STREAM_BODY))
            assert answer.is_chunked
            assert answer.body == event("a")

    play(scene)


def test_interim_answers_of_a_worker_stay_here() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\nX-A: 1\r\n\r\n"

    async def scene(stage: Stage) -> None:
        for pieces in ([interim + sized_answer(b"{}")], [interim, sized_answer(b"{}")]):
            stage.worker.script = sends(*pieces)
            answer = await stage.ask(completion())
            assert (answer.status, answer.body) == (200, b"{}")
            assert not answer.values(b"link")
            assert not answer.values(b"x-a")
        assert stage.worker.connections == 1

    play(scene)


def test_an_answer_is_understood_the_same_wherever_it_is_cut() -> None:
    sized = sized_answer(b'{"a": 1}', headers=[(b"X-A", b"b c")])
    streamed = STREAM_HEAD + b"".join(STREAM) + b"0\r\nX-Trailer: t\r\n\r\n"
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"

    async def scene(stage: Stage) -> None:
        loop = asyncio.get_running_loop()

        async def one(data: bytes, cuts: list[int], expected: bytes, body: bytes) -> None:
            places = [0, *sorted({cut % len(data) for cut in cuts} - {0}), len(data)]
            stage.worker.script = sends(*[data[start:end] for start, end in pairwise(places)])
            answer = await stage.ask(completion(body))
            assert (answer.status, answer.body) == (200, expected)

        def check(kind: int, cuts: list[int]) -> None:
            data = (sized, streamed, interim + sized)[kind]
            expected, body = (STREAM_CONTENT, STREAM_BODY) if kind == 1 else (b'{"a": 1}', BODY)
            asyncio.run_coroutine_threadsafe(one(data, cuts, expected, body), loop).result()

        test = given(st.integers(0, 2), st.lists(st.integers(1, 400), max_size=10))(
            settings(max_examples=80, deadline=None)(check)
        )
        await loop.run_in_executor(None, test)
        await one(streamed, list(range(len(streamed))), STREAM_CONTENT, STREAM_BODY)

    play(scene)


GARBAGE = [
    b"nonsense\r\n\r\n",
    b"HTTP/1.1 abc OK\r\n\r\n",
    b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX-A: b\0c\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nX-A: b\r\n c\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + sized_answer(b"{}"),
    b"HTTP/1.1 200 OK\r\nX-A: " + b"b" * 300_000,
    b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 40_000,
]


@pytest.mark.parametrize("data", GARBAGE, ids=lambda data: repr(data[:60]))
def test_garbage_from_a_worker_is_a_502(data: bytes) -> None:
    async def scene(stage: Stage) -> None:
        stage.worker.script = sends(data)
        async with stage.connection() as connection:
            answer = await connection.ask(completion())
            assert answer.status == 502
            assert answer.json()["error"]["type"] == "upstream_error"
            # The worker's fault is no reason to part from the client.
            stage.worker.script = sends(sized_answer(b"{}"))
            assert (await connection.ask(completion())).status == 200

    play(scene, decode_retries=0)


SECOND = sized_answer(b"second", status=201, headers=[(b"X-Second", b"1")])


@pytest.mark.parametrize("second", [SECOND, SECOND[:20], SECOND[:-3], b"garbage", b"\r\n\r\n" + SECOND])
@pytest.mark.parametrize("together", [True, False])
def test_what_follows_an_answer_is_never_seen(second: bytes, together: bool) -> None:
    first = sized_answer(b"first", headers=[(b"X-First", b"1")])

    async def scene(stage: Stage) -> None:
        async with stage.connection() as connection:
            stage.worker.script = sends(*([first + second] if together else [first, second]))
            answer = await connection.ask(completion())
            assert (answer.status, answer.body) == (200, b"first")
            assert not answer.values(b"x-second")
            stage.worker.script = sends(sized_answer(b"third"))
            await asyncio.sleep(0.02)  # What was sent apart has arrived.
            assert (await connection.ask(completion())).body == b"third"

    play(scene, decode_retries=0)


def test_what_follows_a_stream_is_never_seen() -> None:
    async def scene(stage: Stage) -> None:
        stage.worker.script = sends(STREAM_HEAD + b"".join(STREAM) + LAST_CHUNK + SECOND)
        async with stage.connection() as connection:
            answer = await connection.ask(completion(STREAM_BODY))
            assert (answer.status, answer.body) == (200, STREAM_CONTENT)
            stage.worker.script = sends(sized_answer(b"third"))
            assert (await connection.ask(completion())).body == b"third"

    play(scene)


def test_a_body_where_there_may_be_none_is_never_seen() -> None:
    async def scene(stage: Stage) -> None:
        async with stage.connection() as connection:
            stage.worker.script = sends(b"HTTP/1.1 204 None\r\nContent-Length: 5\r\n\r\nextra")
            assert (await connection.ask(completion())).status == 204
            stage.worker.script = sends(sized_answer(b"x" * 50))
            answer = await connection.ask(request(b"HEAD", b"/v1/models"), has_body=False)
            assert answer.values(b"content-length") == [b"50"]
            stage.worker.script = sends(sized_answer(b"third"))
            assert (await connection.ask(completion())).body == b"third"

    play(scene)


def test_an_answer_before_the_end_of_the_request_is_passed_on() -> None:
    """Its connection is not used again: the rest of the request is still on its way."""
    body = json.dumps({"prompt": "x" * 8_000_000}).encode()

    async def scene(stage: Stage) -> None:
        closed = asyncio.Event()

        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(sized_answer(b"", status=200 if head.startswith(b"GET /health ") else 413))
            # Nothing more is read. That the router has closed is seen by writing.
            while not writer.is_closing():
                writer.write(b" ")
                await asyncio.sleep(0.01)
            closed.set()

        state = stage.router.fleet.ready["decode"][0]
        own = state.pool
        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        state.pool = ConnectionPool("127.0.0.1", port, loop=asyncio.get_running_loop(), connect_timeout_s=1.0)
        try:
            assert (await stage.ask(completion(body))).status == 413
            async with asyncio.timeout(5.0):
                await closed.wait()
            assert state.pool.idle == 0
        finally:
            state.pool.close()
            state.pool = own
            server.close()

    play(scene)


# Connections that wait


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_worker_that_closes_an_idle_connection_as_it_is_used_is_asked_once_more(loop: str, reset: bool) -> None:
    async def scene(stage: Stage) -> None:
        async with stage.connection() as connection:
            assert (await connection.ask(completion())).status == 200
            first = stage.worker.requests[0].connection

            async def race(asked: WorkerRequest, peer: Peer) -> None:
                if peer.number == first:
                    peer.reset() if reset else peer.close()
                else:
                    await peer.answer(b"again")

            stage.worker.script = race
            assert (await connection.ask(completion())).body == b"again"
        assert [asked.connection == first for asked in stage.worker.requests] == [True, True, False]

    play(scene, loop=loop, decode_retries=0)


def test_a_worker_is_not_asked_twice_more() -> None:
    async def scene(stage: Stage) -> None:
        assert await stage.works()
        stage.worker.script = sends(then_close=True)
        answer = await stage.ask(completion())
        assert answer.status == 502
        assert len(stage.worker.requests) == 2

    play(scene, decode_retries=0)


def test_a_worker_that_has_begun_to_answer_is_not_asked_again() -> None:
    async def scene(stage: Stage) -> None:
        for piece in (b"H", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n12"):
            assert await stage.works()
            stage.worker.requests.clear()
            stage.worker.script = sends(piece, then_close=True)
            assert (await stage.ask(completion())).status == 502
            assert len(stage.worker.requests) == 1
            stage.worker.script = sends(sized_answer(b"{}"))

    play(scene, decode_retries=0)


def test_a_worker_that_takes_its_time_to_close_is_not_asked_again() -> None:
    """It has most likely read the request."""

    async def work_and_die(asked: WorkerRequest, peer: Peer) -> None:
        await asyncio.sleep(1.2)
        peer.close()

    async def scene(stage: Stage) -> None:
        assert await stage.works()
        stage.worker.script = work_and_die
        assert (await stage.ask(completion())).status == 502
        assert len(stage.worker.requests) == 1

    play(scene, decode_retries=0)


def test_idle_connections_are_dropped_before_a_worker_drops_them() -> None:
    async def run() -> None:
        async with scripted_worker() as worker:
            port = int(worker.url.rpartition(":")[2])
            loop = asyncio.get_running_loop()
            pool = ConnectionPool("127.0.0.1", port, loop=loop, connect_timeout_s=1.0, idle_s=0.3)
            for _ in range(3):
                await get(pool, b"worker", "/v1/models", timeout_s=1.0)
            assert (worker.connections, pool.idle) == (1, 1)
            await until(lambda: not worker.peers, "the connection has been dropped", limit_s=1.0)
            await get(pool, b"worker", "/v1/models", timeout_s=1.0)
            assert worker.connections == 2
            pool.close()
            await until(lambda: not worker.peers, "the connection has been closed", limit_s=1.0)

    with asyncio.Runner(loop_factory=LOOPS["uvloop"]) as runner:
        runner.run(run())


def test_connections_to_workers_are_not_kept_idle_for_five_seconds() -> None:
    assert IDLE_S < 5.0


def test_many_calls_use_few_connections() -> None:
    async def scene(stage: Stage) -> None:
        async with stage.connection() as connection:
            for _ in range(50):
                assert (await connection.ask(completion())).status == 200
        # One for requests and one for probes, which may come at the same time.
        assert stage.worker.connections <= 2

    play(scene)
