"""Whatever form a client gives a correct request, the worker gets it whole and the client gets its answer."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_client import BODY, LOOPS, Connection, Stage, chunked, completion, play, request
from router_under_test import until
from scripted_worker import Peer, WorkerRequest

CHUNKED_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: router\r\nTransfer-Encoding: chunked\r\n\r\n"
OFFER = [(b"Connection", b"Upgrade, HTTP2-Settings"), (b"Upgrade", b"h2c"), (b"HTTP2-Settings", b"AAMAAABkAAQAAP__")]


async def echo(request: WorkerRequest, peer: Peer) -> None:
    """Answer with the request's target and body."""
    await peer.answer(request.target + b" " + request.body)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted({cut % len(data) for cut in cuts} - {0}), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


@pytest.mark.parametrize("loop", LOOPS)
def test_sized_and_chunked_bodies_arrive_alike(loop: str) -> None:
    async def scene(stage: Stage) -> None:
        sized = await stage.ask(completion())
        in_chunks = await stage.ask(CHUNKED_HEAD + chunked([BODY[:7], BODY[7:8], BODY[8:]]))
        decorated = await stage.ask(
            CHUNKED_HEAD + chunked([BODY[:9], BODY[9:]], extension=b';a="b";c', trailers=b"X-Sum: 1\r\nX-B: 2\r\n")
        )
        assert [answer.status for answer in (sized, in_chunks, decorated)] == [200, 200, 200]
        assert [asked.body for asked in stage.worker.requests] == [BODY] * 3
        assert all(not asked.values(b"x-sum") for asked in stage.worker.requests)

    play(scene, loop=loop)


def test_a_request_is_understood_the_same_wherever_it_is_cut() -> None:
    async def scene(stage: Stage) -> None:
        requests = [
            completion(headers=[(b"X-Thing", b"a b")]),
            CHUNKED_HEAD + chunked([BODY[:5], BODY[5:]], extension=b";x=1", trailers=b"T: 1\r\n"),
            request(b"GET", b"/v1/models?a=b"),
            request(b"POST", b"/v1/completions", BODY, headers=OFFER),
            completion(),
        ]
        everything = b"".join(requests)
        runner = asyncio.get_running_loop()

        async def one(cuts: list[int]) -> None:
            before = len(stage.worker.requests)
            async with stage.connection() as connection:
                await connection.send(*split(everything, cuts))
                answers = [await connection.answer() for _ in requests]
            assert [answer.status for answer in answers] == [200] * len(requests)
            asked = stage.worker.requests[before:]
            assert [(each.method, each.target, each.body) for each in asked] == [
                (b"POST", b"/v1/completions", BODY),
                (b"POST", b"/v1/completions", BODY),
                (b"GET", b"/v1/models?a=b", b""),
                (b"POST", b"/v1/completions", BODY),
                (b"POST", b"/v1/completions", BODY),
            ]
            assert asked[0].values(b"x-thing") == [b"a b"]
            assert asked[3].values(b"upgrade") == asked[3].values(b"http2-settings") == []

        await in_thread(
            given(st.lists(st.integers(1, len(everything) - 1), max_size=12))(
                settings(max_examples=60, deadline=None)(
                    lambda cuts: asyncio.run_coroutine_threadsafe(one(cuts), runner).result()
                )
            )
        )
        await one(list(range(1, len(everything))))

    play(scene)


async def in_thread(test: object) -> None:
    """Run a property test beside the loop that it drives."""
    assert callable(test)
    await asyncio.get_running_loop().run_in_executor(None, test)


def test_pipelined_requests_are_answered_in_order() -> None:
    async def slower_first(asked: WorkerRequest, peer: Peer) -> None:
        number = json.loads(asked.body)["max_tokens"]
        await asyncio.sleep(0.02 if number % 2 else 0.0)
        await peer.answer(b"%d" % number)

    async def scene(stage: Stage) -> None:
        async with stage.connection() as connection:
            bodies = [json.dumps({"prompt": "x", "max_tokens": number}).encode() for number in range(40)]
            await connection.send(b"".join(completion(body) for body in bodies))
            assert [(await connection.answer()).body for _ in bodies] == [b"%d" % number for number in range(40)]

    play(scene, slower_first)


def test_answers_keep_their_order_around_requests_that_are_refused() -> None:
    async def scene(stage: Stage) -> None:
        async with stage.connection() as connection:
            await connection.send(
                completion(b"no JSON")
                + completion()
                + request(b"GET", b"/nowhere")
                + completion()
                + b"nonsense\r\n\r\n"
                + completion()
            )
            statuses = [(await connection.answer()).status for _ in range(5)]
            assert statuses == [400, 200, 404, 200, 400]
            assert await connection.is_closed()
        assert len(stage.worker.requests) == 2

    play(scene)


def test_nothing_begins_before_the_answer_before_it_has_ended() -> None:
    done = asyncio.Event()

    async def held(asked: WorkerRequest, peer: Peer) -> None:
        await done.wait()
        await peer.answer()

    async def scene(stage: Stage) -> None:
        async with stage.connection() as connection:
            await connection.send(completion() + completion())
            await until(lambda: len(stage.worker.requests) == 1, "the first request has arrived")
            assert stage.router.plane.admission.taken == 1
            done.set()
            assert [(await connection.answer()).status for _ in range(2)] == [200, 200]

    play(scene, held)


def test_connections_stay_open_or_close_as_the_client_asks() -> None:
    async def scene(stage: Stage) -> None:
        async with stage.connection() as connection:
            for _ in range(3):
                answer = await connection.ask(completion())
                assert not answer.values(b"connection")
            answer = await connection.ask(completion(headers=[(b"Connection", b"close")]))
            assert answer.values(b"connection") == [b"close"]
            assert await connection.is_closed()
        async with stage.connection() as connection:
            answer = await connection.ask(completion(version=b"1.0"))
            assert answer.values(b"connection") == [b"close"]
            assert await connection.is_closed()
        async with stage.connection() as connection:
            for _ in range(2):
                answer = await connection.ask(completion(version=b"1.0", headers=[(b"Connection", b"keep-alive")]))
                assert answer.values(b"connection") == [b"keep-alive"]

    play(scene)


def test_http_1_0_needs_no_host() -> None:
    async def scene(stage: Stage) -> None:
        answer = await stage.ask(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY)
        assert answer.status == 200

    play(scene)


def test_100_continue_is_sent_once_and_before_the_body() -> None:
    async def scene(stage: Stage) -> None:
        head, _, body = completion(headers=[(b"Expect", b"100-continue ")]).partition(b"\r\n\r\n")
        async with stage.connection() as connection:
            for _ in range(2):
                interim = await connection.ask(head + b"\r\n\r\n")
                assert interim.status == 100
                assert (await connection.ask(body)).status == 200
        assert not any(asked.values(b"expect") for asked in stage.worker.requests)

    play(scene)


def test_100_continue_waits_for_its_turn_behind_another_answer() -> None:
    done = asyncio.Event()

    async def held(asked: WorkerRequest, peer: Peer) -> None:
        await done.wait()
        await peer.answer()

    async def scene(stage: Stage) -> None:
        head, _, body = completion(headers=[(b"Expect", b"100-continue")]).partition(b"\r\n\r\n")
        async with stage.connection() as connection:
            await connection.send(completion() + head + b"\r\n\r\n")
            await until(lambda: len(stage.worker.requests) == 1, "the first request has arrived")
            done.set()
            assert (await connection.answer()).status == 200
            assert (await connection.answer()).status == 100
            assert (await connection.ask(body)).status == 200

    play(scene, held)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ([(b"Content-Length", b"99999999")], 413),
        ([(b"Transfer-Encoding", b"gzip, chunked")], 501),
        ([(b"Host", b"other"), (b"Content-Length", b"5")], 400),
    ],
)
def test_100_continue_is_not_sent_to_a_request_that_is_refused(changes: list[tuple[bytes, bytes]], status: int) -> None:
    async def scene(stage: Stage) -> None:
        data = request(b"POST", b"/v1/completions", headers=[(b"Expect", b"100-continue"), *changes])
        assert (await stage.ask(data)).status == status

    play(scene)


@pytest.mark.parametrize("data", [request(b"GET", b"/health", headers=[(b"Expect", b"100-continue")])])
def test_100_continue_is_not_sent_when_no_body_is_to_come(data: bytes) -> None:
    async def scene(stage: Stage) -> None:
        assert (await stage.ask(data)).status == 200

    play(scene)


def test_100_continue_is_not_sent_to_http_1_0_or_after_the_body() -> None:
    async def scene(stage: Stage) -> None:
        expect = [(b"Expect", b"100-continue")]
        assert (await stage.ask(completion(headers=expect))).status == 200
        assert (await stage.ask(completion(headers=expect, version=b"1.0"))).status == 200

    play(scene)


def test_other_expectations_are_refused() -> None:
    async def scene(stage: Stage) -> None:
        assert (await stage.ask(completion(headers=[(b"Expect", b"miracles")]))).status == 417

    play(scene)


@pytest.mark.parametrize(
    ("target", "seen"),
    [
        (b"http://router/v1/completions", b"/v1/completions"),
        (b"HTTPS://user@router:80/v1/completions?a=b", b"/v1/completions?a=b"),
        (b"/v1/completions?a=%20&b=http://x/", b"/v1/completions?a=%20&b=http://x/"),
    ],
)
def test_targets_in_absolute_form_and_with_queries(target: bytes, seen: bytes) -> None:
    async def scene(stage: Stage) -> None:
        answer = await stage.ask(request(b"POST", target, BODY))
        assert (answer.status, answer.body) == (200, seen + b" " + BODY)
        assert (await stage.ask(request(b"GET", b"http://router"))).status == 404
        assert (await stage.ask(request(b"GET", b"http://router?x"))).status == 404
        assert (await stage.ask(request(b"OPTIONS", b"*"))).status == 404

    play(scene, echo)


def test_a_path_is_read_as_workers_read_it() -> None:
    """Workers decode percent signs: under another name a completion would get round everything that is done for one."""
    body = json.dumps({"prompt": "x", "kv_transfer_params": {"remote_host": "elsewhere"}}).encode()

    async def scene(stage: Stage) -> None:
        answer = await stage.ask(request(b"POST", b"/v1/%63ompletions", body))
        assert answer.status == 200
        assert stage.worker.requests[0].json() == {"prompt": "x"}
        assert (await stage.ask(request(b"POST", b"/v1/load%5Flora_adapter", b"{}"))).status == 404
        assert len(stage.worker.requests) == 1

    play(scene)


def test_head_is_answered_without_a_body() -> None:
    async def scene(stage: Stage) -> None:
        async def describe(asked: WorkerRequest, peer: Peer) -> None:
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\nX-A: b\r\n\r\n")

        stage.worker.script = describe
        async with stage.connection() as connection:
            answer = await connection.ask(request(b"HEAD", b"/v1/models"), has_body=False)
            assert (answer.status, answer.values(b"content-length")) == (200, [b"1234"])
            answer = await connection.ask(request(b"HEAD", b"/v1/completions"), has_body=False)
            assert answer.status == 405
            answer = await connection.ask(request(b"HEAD", b"/nowhere"), has_body=False)
            assert answer.status == 404
            assert (await connection.ask(request(b"GET", b"/health"))).status == 200

    play(scene)


@pytest.mark.parametrize("loop", LOOPS)
def test_an_offer_to_change_the_protocol_is_ignored(loop: str) -> None:
    """Java's HttpClient offers HTTP/2 with its first request, body included."""

    async def scene(stage: Stage) -> None:
        async with stage.connection() as connection:
            assert (await connection.ask(completion(headers=OFFER))).body == b"/v1/completions " + BODY
            head, _, body = completion(headers=[*OFFER, (b"Expect", b"100-continue")]).partition(b"\r\n\r\n")
            assert (await connection.ask(head + b"\r\n\r\n")).status == 100
            assert (await connection.ask(body)).status == 200
            data = CHUNKED_HEAD[:-2] + b"Upgrade: h2c\r\nConnection: upgrade\r\n\r\n" + chunked([BODY])
            assert (await connection.ask(data + request(b"GET", b"/v1/models", headers=OFFER))).status == 200
            assert (await connection.answer()).body == b"/v1/models "
            await still_obeys(connection)

    async def still_obeys(connection: Connection) -> None:
        offer = [(b"Connection", b"Upgrade, X-Secret, close"), (b"Upgrade", b"websocket"), (b"X-Secret", b"1")]
        assert (await connection.ask(completion(headers=offer))).values(b"connection") == [b"close"]
        assert await connection.is_closed()

    async def check(stage: Stage) -> None:
        await scene(stage)
        assert not any(asked.values(b"upgrade") or asked.values(b"x-secret") for asked in stage.worker.requests)
        old = [(b"Connection", b"Upgrade"), (b"Upgrade", b"h2c")]
        data = completion(headers=old, version=b"1.0").replace(b"Host: router\r\n", b"")
        assert (await stage.ask(data)).values(b"connection") == [b"close"]

    play(check, echo, loop=loop)


def test_connect_is_refused() -> None:
    async def scene(stage: Stage) -> None:
        async with stage.connection() as connection:
            data = b"CONNECT elsewhere:443 HTTP/1.1\r\nHost: elsewhere:443\r\n\r\n"
            assert (await connection.ask(data + completion())).status == 405
            assert await connection.is_closed()
        assert stage.worker.requests == []

    play(scene)


def test_empty_lines_before_a_request_are_skipped() -> None:
    async def scene(stage: Stage) -> None:
        async with stage.connection() as connection:
            assert (await connection.ask(b"\r\n\r\n" + completion())).status == 200
            assert (await connection.ask(b"\r\n" + completion())).status == 200

    play(scene)
