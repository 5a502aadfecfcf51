"""Engines whose workers are asked at once: SGLang, and vLLM with Mooncake."""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from failure_scene import (
    JSON,
    Refusing,
    Scene,
    answering,
    completion,
    connected,
    decode_normally,
    die,
    events,
    hang,
    run,
    scene,
    stream_then,
)
from router_under_test import until
from scripted_worker import Peer, Script, WorkerRequest

from dolphin_router.exchange.abandoned_prefill import AbandonedPrefill
from dolphin_router.exchange.attempt import DRAIN_S

ENGINES = ["sglang", "vllm-mooncake"]
DROPS = 20
DRAINED = answering(200, b'{"choices": [{"text": "x"}], "usage": {"prompt_tokens": 5}}')


@asynccontextmanager
async def pair(
    engine: str, *, prefill: Script | Refusing = DRAINED, decode: Script | Refusing = decode_normally, **settings: Any
) -> AsyncIterator[Scene]:
    """Run one worker of each kind, or what is given for it."""
    async with several(engine, prefill=[prefill], decode=[decode], **settings) as s:
        yield s


@asynccontextmanager
async def several(
    engine: str, *, prefill: Sequence[Script | Refusing], decode: Sequence[Script | Refusing], **settings: Any
) -> AsyncIterator[Scene]:
    """Run workers. Those of Mooncake are taken to have been asked for their engine's id."""
    async with AsyncExitStack() as stack:
        s = await stack.enter_async_context(
            scene(prefill=prefill, decode=decode, engine=engine, needs_probes=False, **settings)
        )
        for state in s.router.fleet.workers:
            facts = {"ranks": ((0, "engine"),)} if state.worker.role == "prefill" else None
            s.router.fleet.set_ready(state, True, facts)
        yield s


def rooms(s: Scene) -> list[Any]:
    """Return what joins the two legs, for each decode leg."""
    return [room_of(leg) for worker in s.decodes for leg in worker.requests]


def room_of(leg: WorkerRequest) -> Any:
    body = leg.json()
    return body["bootstrap_room"] if "bootstrap_room" in body else body["kv_transfer_params"]["transfer_id"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_both_workers_are_asked_at_once_and_the_decode_worker_answers(engine: str, stream: bool) -> None:
    both = asyncio.Event()

    async def prefill(leg: WorkerRequest, peer: Peer) -> None:
        await both.wait()
        await DRAINED(leg, peer)

    async def decode(leg: WorkerRequest, peer: Peer) -> None:
        both.set()
        await decode_normally(leg, peer)

    async def play() -> None:
        async with pair(engine, prefill=prefill, decode=decode) as s:
            answer = await s.complete(stream=stream)
            assert answer.status == 200
            assert events(answer.body)[-1] == b"[DONE]" if stream else answer.json()
            assert room_of(s.prefills[0].requests[0]) == rooms(s)[0]
            await s.assert_at_rest()
            assert s.records[0].outcome == "completed"

    run(play())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 429, 500, 503])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_failed_prefill_ends_the_decode_leg_at_once(engine: str, status: int, stream: bool) -> None:
    """A decode worker that is left alone waits for its KV cache for minutes."""
    left: list[float] = []
    asked = asyncio.Event()

    async def prefill(leg: WorkerRequest, peer: Peer) -> None:
        await asked.wait()
        await peer.answer(b"refused", status=status, headers=[JSON, (b"retry-after", b"5")])

    async def decode(leg: WorkerRequest, peer: Peer) -> None:
        asked.set()
        await peer.until_closed()
        left.append(asyncio.get_running_loop().time())

    async def play() -> None:
        async with pair(engine, prefill=prefill, decode=decode) as s:
            answer = await s.complete(stream=stream)
            answered_s = asyncio.get_running_loop().time()
            assert (answer.status, answer.body, answer.values(b"retry-after")) == (status, b"refused", [b"5"])
            await until(lambda: len(left) == 1, "the decode leg is closed")
            assert left[0] - answered_s < 0.5
            await s.assert_at_rest()
            assert s.records[0].outcome == "rejected"

    run(play())


@pytest.mark.parametrize("failing", [Refusing(), die])
@pytest.mark.parametrize("engine", ENGINES)
def test_both_legs_start_again_with_another_room_when_a_prefill_worker_fails(
    engine: str, failing: Script | Refusing
) -> None:
    async def play() -> None:
        async def decode(leg: WorkerRequest, peer: Peer) -> None:
            # As an engine: it has nothing to answer before a prefill worker has taken the same room. The first leg may
            # be given up before it arrives here.
            while room_of(leg) not in [room_of(request) for request in s.prefills[-1].requests]:
                if peer.reader.at_eof() or peer.reader.exception() is not None:
                    return
                await asyncio.sleep(0.005)
            await decode_normally(leg, peer)

        async with several(engine, prefill=[failing, DRAINED], decode=[decode]) as s:
            assert (await s.complete()).status == 200
            # Refused before it was asked, or left: no room serves twice.
            assert len(set(rooms(s))) == len(rooms(s))
            assert room_of(s.prefills[-1].requests[0]) == rooms(s)[-1]
            await s.assert_at_rest()
            assert (s.records[0].outcome, s.records[0].retries) == ("completed", 1)

    run(play())


@pytest.mark.parametrize("engine", ENGINES)
def test_both_legs_start_again_when_the_decode_worker_fails(engine: str) -> None:
    async def play() -> None:
        async def fail(leg: WorkerRequest, peer: Peer) -> None:
            await until(lambda: len(s.prefills[0].requests) >= 1, "the prefill worker works")
            peer.reset()

        async with several(engine, prefill=[hang_first(DRAINED)], decode=[fail, decode_normally]) as s:
            assert (await s.complete()).status == 200
            # Over a connection that had been idle, the first worker may have been asked twice: never for one room.
            assert len(set(rooms(s))) == len(rooms(s)) == s.records[0].retries + 1
            assert room_of(s.prefills[0].requests[-1]) == rooms(s)[-1]
            await s.assert_at_rest()
            assert s.records[0].outcome == "completed"
            assert s.records[0].decode_worker == s.decodes[1].url.removeprefix("http://")

    run(play())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_decode_worker_that_refuses_connections_is_replaced(engine: str) -> None:
    async def play() -> None:
        async with several(engine, prefill=[hang_first(DRAINED)], decode=[Refusing(), decode_normally]) as s:
            assert (await s.complete()).status == 200
            await s.assert_at_rest()
            assert (s.records[0].outcome, s.records[0].retries) == ("completed", 1)

    run(play())


def hang_first(then: Script) -> Script:
    """Return the script of a worker that does not answer the first request."""
    asked: list[bool] = []

    async def script(leg: WorkerRequest, peer: Peer) -> None:
        asked.append(True)
        await (then if len(asked) > 1 else hang)(leg, peer)

    return script


@pytest.mark.parametrize("engine", ENGINES)
def test_a_prefill_that_fails_after_the_answer_has_begun_ends_the_stream_by_an_error(engine: str) -> None:
    began = asyncio.Event()

    async def prefill(leg: WorkerRequest, peer: Peer) -> None:
        await began.wait()
        await peer.answer(b"{}", status=400)

    async def play() -> None:
        async with pair(engine, prefill=prefill, decode=stream_then(hang)) as s, connected(s.router) as client:
            await client.send(completion(stream=True))
            head = await client.head()
            assert head.status == 200
            rest = await client.chunk()
            began.set()
            while piece := await client.chunk():
                rest += piece
            assert json.loads(events(rest)[-1])["error"]["message"] == "the prefill worker answered 400"
            assert b"[DONE]" not in rest
            await s.assert_at_rest()
            assert s.records[0].outcome == "failed"

    run(play())


@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_that_leaves_ends_both_legs(engine: str, has_begun: bool) -> None:
    left_s: list[float] = []

    async def wait(leg: WorkerRequest, peer: Peer) -> None:
        await peer.until_closed()
        left_s.append(asyncio.get_running_loop().time())

    async def play() -> None:
        decode = stream_then(wait, events=1) if has_begun else wait
        async with pair(engine, prefill=wait, decode=decode) as s:
            delays_s = []
            for number in range(DROPS):
                async with connected(s.router) as client:
                    await client.send(completion(stream=True))
                    if has_begun:
                        await client.head()
                        await client.chunk()
                    workers = (s.prefills[0], s.decodes[0])
                    await until(
                        lambda: all(len(worker.requests) == number + 1 for worker in workers),  # noqa: B023
                        "both work",
                    )
                    client.writer.transport.abort()
                    dropped_s = asyncio.get_running_loop().time()
                    await until(lambda: len(left_s) == 2 * (number + 1), "both are left")  # noqa: B023
                    delays_s.append(max(left_s[-2:]) - dropped_s)
            assert statistics.median(delays_s) < 0.1
            assert max(delays_s) < 0.5
            await s.assert_at_rest()
            assert {record.outcome for record in s.records} == {"client-closed"}

    run(play())


@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize("engine", ENGINES)
def test_what_the_decode_worker_refuses_ends_the_prefill_leg(engine: str, status: int) -> None:
    async def play() -> None:
        async with pair(engine, prefill=hang, decode=answering(status)) as s:
            assert (await s.complete()).status == status
            await until(lambda: not legs_open(s), "the prefill leg is closed")
            await s.assert_at_rest()

    run(play())


def legs_open(s: Scene) -> list[Peer]:
    """Return the prefill worker's connections on which it was asked for something."""
    asked = {leg.connection for leg in s.prefills[0].requests}
    return [peer for peer in s.prefills[0].peers if peer.number in asked]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_prefill_answer_that_comes_late_is_read_for_its_connection_s_sake(engine: str) -> None:
    go_on = asyncio.Event()

    async def prefill(leg: WorkerRequest, peer: Peer) -> None:
        await go_on.wait()
        await DRAINED(leg, peer)

    async def play() -> None:
        async with pair(engine, prefill=prefill) as s:
            assert (await s.complete()).status == 200
            go_on.set()
            (state,) = s.router.fleet.ready["prefill"]
            await until(lambda: len(legs_open(s)) == 1, "the connection stays")
            await s.assert_at_rest()
            before = s.prefills[0].connections
            assert (await s.complete()).status == 200
            assert s.prefills[0].connections == before
            assert state.open_requests == 0

    run(play())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_prefill_answer_that_never_comes_is_given_up(engine: str) -> None:
    async def play() -> None:
        async with pair(engine, prefill=hang) as s:
            assert (await s.complete()).status == 200
            assert len(legs_open(s)) == 1
            watched = s.router.plane.deadlines._objects
            (left,) = [timed for timed in watched if isinstance(timed, AbandonedPrefill)]
            assert 0.0 < left.deadline_s - asyncio.get_running_loop().time() <= DRAIN_S
            left.deadline_s = 0.0  # As if that long had passed.
            await until(lambda: not legs_open(s), "the prefill leg is closed")
            await s.assert_at_rest()
            assert s.router.plane.stranded_leases == 0

    run(play())


def test_mooncake_s_usage_is_the_prefill_worker_s() -> None:
    """The decode worker counts the whole transferred prompt as cached."""
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}
    told = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}}
    prefilled = asyncio.Event()

    async def prefill(leg: WorkerRequest, peer: Peer) -> None:
        await peer.answer(json.dumps({"choices": [], "usage": told}).encode(), headers=[JSON])

    async def decode(leg: WorkerRequest, peer: Peer) -> None:
        await prefilled.wait()
        await peer.answer(json.dumps({"choices": [], "usage": usage}).encode(), headers=[JSON])

    async def play() -> None:
        async with pair("vllm-mooncake", prefill=prefill, decode=decode) as s, connected(s.router) as client:
            await client.send(completion())
            (state,) = s.router.fleet.ready["prefill"]
            await until(lambda: s.prefills[0].requests and not state.queue_tokens, "the prompt is computed")
            prefilled.set()
            answer = await client.answer()
            assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 4

    run(play())


def test_headers_that_an_adapter_adds_replace_the_client_s() -> None:
    async def play() -> None:
        async with pair("vllm-mooncake") as s:
            (state,) = s.router.fleet.ready["prefill"]
            s.router.fleet.set_ready(state, True, {"ranks": ((5, "one"), (7, "other"))})
            assert (await s.complete(headers=[(b"X-Data-Parallel-Rank", b"99")])).status == 200
            assert s.prefills[0].requests[0].values(b"x-data-parallel-rank") in ([b"5"], [b"7"])
            assert s.decodes[0].requests[0].values(b"x-data-parallel-rank") == [b"99"]

    run(play())
