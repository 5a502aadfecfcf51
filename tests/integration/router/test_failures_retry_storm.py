"""A failing pool is not buried under repetitions."""

from __future__ import annotations

import asyncio

import pytest
from failure_scene import NumberedPrefill, Scene, answering, completion, connected, die, run, scene
from scripted_worker import Peer, Script, WorkerRequest

REQUESTS = 400
SAVED_UP = 10
SHARE = 0.2


async def storm(s: Scene) -> None:
    """Send many requests, all of which fail."""

    async def load(count: int) -> None:
        async with connected(s.router) as client:
            for _ in range(count):
                assert (await client.ask(completion(prompt="hi"))).status in (502, 503)

    await asyncio.gather(*(load(REQUESTS // 8) for _ in range(8)))
    await s.assert_at_rest()


@pytest.mark.parametrize("script", [answering(503), die])
def test_failing_prefill_workers_get_at_most_a_fifth_more_requests(script: Script) -> None:
    async def play() -> None:
        async with scene(prefill=[script] * 3, prefill_retries=10) as s:
            await storm(s)
            retries = sum(record.retries for record in s.records)
            assert 0 < retries <= REQUESTS * SHARE + SAVED_UP
            if script is not die:  # Else requests over connections that had been idle come twice.
                asked = sum(len(worker.requests) for worker in s.prefills)
                assert asked == REQUESTS + retries

    run(play())


def test_failing_decode_workers_get_at_most_a_fifth_more_requests() -> None:
    async def die_after_a_head(request: WorkerRequest, peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n")
        peer.close()

    async def play() -> None:
        async with scene(prefill=[NumberedPrefill()], decode=[die_after_a_head] * 3, decode_retries=10) as s:
            await storm(s)
            asked = sum(len(worker.requests) for worker in s.decodes)
            assert REQUESTS < asked <= REQUESTS * (1 + SHARE) + SAVED_UP
            assert len(s.prefills[0].requests) == asked

    run(play())


def test_a_pool_that_recovers_finds_the_budget_refilled() -> None:
    is_ill = True

    async def moody(request: WorkerRequest, peer: Peer) -> None:
        await (answering(503) if is_ill else NumberedPrefill())(request, peer)

    async def play() -> None:
        nonlocal is_ill
        async with scene(prefill=[moody, moody]) as s:
            await storm(s)
            assert not s.router.plane.budget.spend()
            is_ill = False
            for _ in range(5):
                assert (await s.complete()).status == 200
            assert s.router.plane.budget.spend()

    run(play())
