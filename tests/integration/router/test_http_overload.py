"""No more is taken on than is allowed, everybody has a turn, and every place is given back, however a request ends."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from raw_client import Connection, CutAnswer, Stage, completion, play, request
from router_under_test import until
from scripted_worker import Peer, WorkerRequest

from dolphin_router.contract import Limits
from dolphin_router.contract.router_config import Timeouts
from dolphin_router.http.half_close import half_close
from dolphin_router.http.limits import HttpLimits

KV = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "e",
    "remote_block_ids": [1, 2],
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
}


def numbered(number: int, *, stream: bool = False) -> bytes:
    return completion(json.dumps({"prompt": "Hello " * 9, "max_tokens": number, "stream": stream}).encode())


def number_of(asked: WorkerRequest) -> int:
    number: int = asked.json()["max_tokens"]
    return number


class Gate:
    """A script that answers each request when it is told to."""

    def __init__(self) -> None:
        self._turns: dict[int, asyncio.Event] = {}

    def open(self, number: int) -> None:
        self._turns.setdefault(number, asyncio.Event()).set()

    async def __call__(self, asked: WorkerRequest, peer: Peer) -> None:
        number = number_of(asked)
        await self._turns.setdefault(number, asyncio.Event()).wait()
        await peer.answer(b"%d" % number)


def test_beyond_the_limits_requests_are_told_when_to_come_back() -> None:
    gate = Gate()

    async def scene(stage: Stage) -> None:
        admission = stage.router.plane.admission
        asked = []
        for number in range(5):
            asked.append(asyncio.ensure_future(stage.ask(numbered(number))))
            await until(lambda: admission.taken + admission.waiting == len(asked), "it has arrived")
        assert (admission.taken, admission.waiting) == (2, 3)
        assert len(stage.worker.requests) == 2
        async with stage.connection() as connection:
            answer = await connection.ask(numbered(9))
            assert answer.status == 429
            assert int(answer.values(b"retry-after")[0]) >= 1
            assert answer.json()["error"]["type"] == "rate_limit_error"
            # What takes no place is answered all the same.
            assert (await connection.ask(request(b"GET", b"/health"))).status == 200
        for number in range(5):
            gate.open(number)
        assert [(await answer).body for answer in asked] == [b"%d" % number for number in range(5)]
        # First come, first served.
        assert [number_of(each) for each in stage.worker.requests] == list(range(5))
        assert (admission.taken, admission.waiting) == (0, 0)

    play(scene, gate, limits=Limits(concurrent_requests=2, waiting_requests=3))


def test_who_waits_too_long_is_told_when_to_come_back() -> None:
    gate = Gate()

    async def scene(stage: Stage) -> None:
        first = asyncio.ensure_future(stage.ask(numbered(1)))
        await until(lambda: len(stage.worker.requests) == 1, "it has arrived")
        answer = await stage.ask(numbered(2))
        assert answer.status == 429
        assert int(answer.values(b"retry-after")[0]) >= 1
        gate.open(1)
        assert (await first).status == 200
        assert len(stage.worker.requests) == 1

    limits, timeouts = (Limits(concurrent_requests=1, waiting_requests=9), Timeouts(queue_s=0.2))
    play(scene, gate, limits=limits, timeouts=timeouts)


def test_who_leaves_while_waiting_makes_room() -> None:
    gate = Gate()

    async def scene(stage: Stage) -> None:
        admission = stage.router.plane.admission
        first = asyncio.ensure_future(stage.ask(numbered(1)))
        await until(lambda: admission.taken == 1, "the first has arrived")
        async with stage.connection() as connection:
            await connection.send(numbered(2))
            await until(lambda: admission.waiting == 1, "the second waits")
        await until(lambda: admission.waiting == 0, "the second has left", limit_s=1.0)
        gate.open(1)
        assert (await first).status == 200
        assert [number_of(each) for each in stage.worker.requests] == [1]

    play(scene, gate, limits=Limits(concurrent_requests=1, waiting_requests=1))


def test_a_connection_that_pipelines_waits_behind_those_that_came_later() -> None:
    gate = Gate()

    async def scene(stage: Stage) -> None:
        admission = stage.router.plane.admission
        async with stage.connection() as greedy:
            await greedy.send(b"".join(numbered(number) for number in range(10)))
            await until(lambda: admission.taken == 1, "the first has arrived")
            others = []
            for number in range(20, 24):
                others.append(asyncio.ensure_future(stage.ask(numbered(number))))
                await until(lambda: admission.waiting == len(others), "another waits")
            for number in (*range(10), *range(20, 24)):
                gate.open(number)
            assert [(await other).status for other in others] == [200] * 4
            assert [(await greedy.answer()).body for _ in range(10)] == [b"%d" % number for number in range(10)]
        order = [number_of(each) for each in stage.worker.requests]
        assert order == [0, 20, 21, 22, 23, *range(1, 10)]

    play(scene, gate, limits=Limits(concurrent_requests=1, waiting_requests=100))


# Every way to end

Ending = Callable[[WorkerRequest, Peer], Awaitable[None]]


async def answer(asked: WorkerRequest, peer: Peer) -> None:
    await peer.answer()


async def stream(asked: WorkerRequest, peer: Peer) -> None:
    await peer.start_stream()
    for _ in range(5):
        await peer.event()
    await peer.end_stream()


async def stream_slowly(asked: WorkerRequest, peer: Peer) -> None:
    await peer.start_stream()
    for _ in range(30):
        await peer.event("x" * 3_000)
        await asyncio.sleep(0.01)
    await peer.end_stream()


async def reject(asked: WorkerRequest, peer: Peer) -> None:
    await peer.answer(status=400)


async def be_busy(asked: WorkerRequest, peer: Peer) -> None:
    await peer.answer(status=429)


async def fail(asked: WorkerRequest, peer: Peer) -> None:
    await peer.answer(status=500)


async def be_unavailable(asked: WorkerRequest, peer: Peer) -> None:
    await peer.answer(status=503)


async def close(asked: WorkerRequest, peer: Peer) -> None:
    peer.close()


async def reset(asked: WorkerRequest, peer: Peer) -> None:
    peer.reset()


async def reset_late(asked: WorkerRequest, peer: Peer) -> None:
    await asyncio.sleep(0.05)
    peer.reset()


async def talk_nonsense(asked: WorkerRequest, peer: Peer) -> None:
    await peer.send(b"nonsense\r\n\r\n")


async def hang(asked: WorkerRequest, peer: Peer) -> None:
    await peer.until_closed()


async def hang_in_head(asked: WorkerRequest, peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\n")
    await peer.until_closed()


async def hang_in_stream(asked: WorkerRequest, peer: Peer) -> None:
    await peer.start_stream()
    await peer.event()
    await peer.until_closed()


async def cut_stream(asked: WorkerRequest, peer: Peer) -> None:
    await peer.start_stream()
    await peer.event()
    peer.reset()


async def cut_body(asked: WorkerRequest, peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    peer.close()


async def flood(asked: WorkerRequest, peer: Peer) -> None:
    await peer.start_stream()
    for _ in range(40):
        await peer.event("x" * 100_000)
    await peer.end_stream()


async def give_kv(asked: WorkerRequest, peer: Peer) -> None:
    await peer.answer(json.dumps({"choices": [], "kv_transfer_params": KV}).encode())


async def give_kv_late(asked: WorkerRequest, peer: Peer) -> None:
    await asyncio.sleep(0.03)
    await give_kv(asked, peer)


COMMON: list[Ending] = [reject, be_busy, fail, be_unavailable, close, reset, reset_late, talk_nonsense, hang]
DECODES = [answer, stream, stream_slowly, hang_in_head, hang_in_stream, cut_stream, cut_body, flood, *COMMON]
PREFILLS = [give_kv, give_kv, give_kv, give_kv_late, give_kv_late, answer, cut_body, hang_in_head, *COMMON]


async def read_all(connection: Connection, data: bytes) -> None:
    await connection.ask(data)


async def leave_at_once(connection: Connection, data: bytes) -> None:
    await connection.send(data)


async def leave_soon(connection: Connection, data: bytes) -> None:
    await connection.send(data)
    await asyncio.sleep(random.uniform(0.0, 0.1))


async def leave_within_answer(connection: Connection, data: bytes) -> None:
    await connection.send(data)
    await connection.head()


async def leave_within_request(connection: Connection, data: bytes) -> None:
    await connection.send(data[:-5])


async def close_half(connection: Connection, data: bytes) -> None:
    await connection.send(data)
    half_close(connection.writer.transport)
    await connection.rest()


async def pipeline(connection: Connection, data: bytes) -> None:
    await connection.send(data + data + b"nonsense\r\n\r\n")
    await connection.answer()
    await connection.answer()


async def stall(connection: Connection, data: bytes) -> None:
    connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await connection.send(data)
    await asyncio.sleep(0.8)


CLIENTS = [
    *[read_all] * 4,
    leave_at_once,
    leave_soon,
    leave_within_answer,
    leave_within_request,
    close_half,
    pipeline,
    stall,
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("has_prefill", [False, True])
def test_places_loads_and_deadlines_are_given_back_in_every_way_a_request_can_end(seed: int, has_prefill: bool) -> None:
    choice = random.Random(seed)
    count = 120
    decodes = [choice.choice(DECODES) for _ in range(count)]
    prefills = [choice.choice(PREFILLS) for _ in range(count)]
    clients = [choice.choice(CLIENTS) for _ in range(count)]

    async def decode(asked: WorkerRequest, peer: Peer) -> None:
        await decodes[number_of(asked) - 100](asked, peer)

    async def prefill(asked: WorkerRequest, peer: Peer) -> None:
        # On this leg the router has replaced the number of tokens.
        await prefills[int(asked.values(b"x-number")[0])](asked, peer)

    async def scene(stage: Stage) -> None:
        plane = stage.router.plane
        seen: Counter[object] = Counter()

        async def one(number: int) -> None:
            await asyncio.sleep(choice.uniform(0.0, 1.0))
            body = json.dumps({"prompt": "Hello " * 9, "max_tokens": number + 100, "stream": number % 2 == 0}).encode()
            data = completion(body, headers=[(b"X-Number", b"%d" % number)])
            async with stage.connection() as connection:
                try:
                    await clients[number](connection, data)
                    seen["answered"] += 1
                except (CutAnswer, ConnectionError, TimeoutError):
                    seen["cut"] += 1

        stage.router.server.limits = HttpLimits(unread_s=0.3, linger_s=0.1)
        await asyncio.gather(*[one(number) for number in range(count)])
        await until(lambda: plane.admission.taken == plane.admission.waiting == 0, "all places are free")
        await until(lambda: not stage.router.server.connections, "all connections are closed")
        await until(lambda: len(plane.deadlines) == 0, "nothing is waited for")
        for state in stage.router.fleet.workers:
            load = (state.open_requests, state.queue_tokens, state.context_tokens, state.running_decodes)
            assert load == (0, 0.0, 0.0, 0), state.name
        assert seen["answered"] > count / 2

    play(
        scene,
        decode,
        prefill=prefill if has_prefill else None,
        limits=Limits(concurrent_requests=20, waiting_requests=20),
        timeouts=Timeouts(prefill_s=0.3, first_byte_s=0.3, stream_idle_s=0.3, client_stall_s=0.3, queue_s=0.5),
        prefill_retries=1,
        decode_retries=1,
    )
