"""The client leaves: whoever works for it hears of it at once, and nothing stays behind."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from failure_scene import (
    NumberedPrefill,
    Scene,
    completion,
    connected,
    decode_normally,
    is_release,
    run,
    scene,
)
from raw_client import Connection, request
from router_under_test import until
from scripted_worker import Peer, WorkerRequest

from dolphin_router.http.upstream import ConnectionPool

DROPS = 20
MEDIAN_S = 0.1
SLOWEST_S = 0.5
"""On a busy machine."""


class Waiting:
    """The script of a worker that works until its client leaves, and notes when that was."""

    def __init__(self, *, begin: Callable[[Peer], Awaitable[None]] | None = None) -> None:
        self.asked = 0
        self.left_s: list[float] = []
        self._begin = begin

    async def __call__(self, leg: WorkerRequest, peer: Peer) -> None:
        if is_release(leg):
            await decode_normally(leg, peer)
            return
        if self._begin is not None:
            await self._begin(peer)
        self.asked += 1
        await peer.until_closed()
        self.left_s.append(asyncio.get_running_loop().time())


async def drop_often(
    s: Scene, worker: Waiting, *, stream: bool, until_begun: Callable[[Connection], Awaitable[None]] | None = None
) -> None:
    """Leave again and again while the worker works, and measure how long it goes on."""
    loop = asyncio.get_running_loop()
    delays_s = []
    for number in range(DROPS):
        async with connected(s.router) as client:
            await client.send(completion(stream=stream))
            await until(lambda: worker.asked == number + 1, "the worker works")  # noqa: B023
            if until_begun is not None:
                await until_begun(client)
            client.writer.transport.abort()
            left_s = loop.time()
            await until(lambda: len(worker.left_s) == number + 1, "the worker is left")  # noqa: B023
            delays_s.append(worker.left_s[-1] - left_s)
    assert statistics.median(delays_s) < MEDIAN_S
    assert max(delays_s) < SLOWEST_S
    await s.assert_at_rest()
    assert [record.outcome for record in s.records] == ["client-closed"] * DROPS
    assert all(record.status is None for record in s.records)


@pytest.mark.parametrize("stream", [False, True])
def test_while_the_prefill_worker_works(stream: bool) -> None:
    async def play() -> None:
        prefill = Waiting()
        async with scene(prefill=[prefill]) as s:
            await drop_often(s, prefill, stream=stream)
            assert not s.decodes[0].requests

    run(play())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("action", ["local", "remote"])
def test_before_the_first_byte_of_the_answer(action: str, stream: bool) -> None:
    async def play() -> None:
        decode = Waiting()
        async with scene(prefill=[NumberedPrefill()], decode=[decode], fallback_action=action) as s:
            await drop_often(s, decode, stream=stream)
            # A decode worker that is left frees the KV cache by itself.
            assert s.releases() == []
            assert s.router.plane.stranded_leases == 0

    run(play())


@pytest.mark.parametrize("action", ["local", "remote"])
def test_within_a_stream(action: str) -> None:
    async def begin(peer: Peer) -> None:
        await peer.start_stream()
        await peer.event()

    async def first_event(client: Connection) -> None:
        await client.head()
        await client.chunk()

    async def play() -> None:
        decode = Waiting(begin=begin)
        async with scene(prefill=[NumberedPrefill()], decode=[decode], fallback_action=action) as s:
            await drop_often(s, decode, stream=True, until_begun=first_event)

    run(play())


def test_within_a_whole_answer() -> None:
    async def begin(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")

    async def play() -> None:
        decode = Waiting(begin=begin)
        async with scene(prefill=[NumberedPrefill()], decode=[decode]) as s:
            await drop_often(s, decode, stream=False)

    run(play())


def test_a_decode_worker_that_was_only_just_asked_gets_the_time_to_take_the_request_up() -> None:
    """Were it left at once, its HTTP server would throw the request away, and nobody would free the KV cache."""

    async def play() -> None:
        decode = Waiting()
        async with scene(prefill=[NumberedPrefill()], decode=[decode]) as s:
            loop = asyncio.get_running_loop()
            for number in range(5):
                async with connected(s.router) as client:
                    await client.send(completion())
                    await until(lambda: decode.asked == number + 1, "the worker works")  # noqa: B023
                    asked_s = loop.time()
                    client.writer.transport.abort()
                    await until(lambda: len(decode.left_s) == number + 1, "the worker is left")  # noqa: B023
                    assert decode.left_s[-1] - asked_s > 0.03

    run(play())


class Gate:
    """An event loop that makes no connection before the gate opens: to a worker whose backlog is full."""

    def __init__(self) -> None:
        self.waiting = 0
        self._loop = asyncio.get_running_loop()
        self._is_open = asyncio.Event()

    def pool(self, pool: ConnectionPool) -> ConnectionPool:
        """Return a pool for the same worker, with its connections behind the gate."""
        return ConnectionPool(pool._host, pool._port, loop=cast(Any, self), connect_timeout_s=60.0)

    def open(self) -> None:
        self._is_open.set()

    async def create_connection(self, *arguments: Any) -> Any:
        self.waiting += 1
        await self._is_open.wait()
        return await self._loop.create_connection(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


@pytest.mark.parametrize("stream", [False, True])
def test_between_the_legs_the_decode_worker_is_told_to_drop_the_kv_cache(stream: bool) -> None:
    async def play() -> None:
        async with scene(prefill=[NumberedPrefill()]) as s:
            (state,) = s.router.fleet.ready["decode"]
            gate = Gate()
            state.pool = gate.pool(state.pool)
            for number in range(DROPS):
                async with connected(s.router) as client:
                    await client.send(completion(stream=stream))
                    calls = 2 * number + 1
                    await until(lambda: gate.waiting == calls, "the decode leg waits")  # noqa: B023
                    client.writer.transport.abort()
                    await until(lambda: gate.waiting == calls + 1, "the release leg waits")  # noqa: B023
            assert not s.decodes[0].requests
            gate.open()
            await until(lambda: len(s.releases()) == DROPS, "the release legs have come")
            # Nothing else has.
            assert len(s.decodes[0].requests) == DROPS
            assert len(set(s.releases())) == DROPS
            await s.assert_at_rest()
            assert s.router.plane.stranded_leases == 0
            assert [record.outcome for record in s.records] == ["client-closed"] * DROPS

    run(play())


@pytest.mark.parametrize("sent", [0.0, 0.5, 1.0])
def test_while_the_body_is_still_coming_nobody_is_asked(sent: float) -> None:
    async def play() -> None:
        async with scene(prefill=[NumberedPrefill()]) as s:
            whole = completion()
            head, _, body = whole.partition(b"\r\n\r\n")
            part = head + b"\r\n\r\n" + body[: int((len(body) - 1) * sent)]
            for _ in range(DROPS):
                async with connected(s.router) as client:
                    await client.send(part)
                    await until(lambda: len(s.router.server.connections) == 1, "the router has the connection")
                    client.writer.transport.abort()
                    await until(lambda: not s.router.server.connections, "the router has noticed")
            await s.assert_at_rest()
            assert not s.prefills[0].requests
            assert not s.decodes[0].requests
            # And it still works.
            assert (await s.complete()).status == 200

    run(play())


def test_while_the_request_waits_for_its_turn() -> None:
    async def play() -> None:
        prefill = Waiting()
        async with scene(prefill=[prefill], limits={"concurrent_requests": 1}) as s:
            async with connected(s.router) as first:
                await first.send(completion())
                await until(lambda: prefill.asked == 1, "the first is worked on")
                for _ in range(DROPS):
                    async with connected(s.router) as second:
                        await second.send(completion())
                        await until(lambda: s.router.plane.admission.waiting == 1, "the second waits")
                        second.writer.transport.abort()
                        await until(lambda: s.router.plane.admission.waiting == 0, "the second waits no more")
            await s.assert_at_rest()
            assert prefill.asked == 1
            assert [record.outcome for record in s.records] == ["client-closed"] * (DROPS + 1)

    run(play())


@pytest.mark.parametrize("order", ["first", "second"])
def test_a_client_that_pipelines_takes_all_its_requests_with_it(order: str) -> None:
    async def play() -> None:
        decode = Waiting()
        async with scene(decode=[decode]) as s:
            async with connected(s.router) as client:
                health = request(b"GET", b"/health")
                await client.send(completion() + health if order == "first" else health + completion() + completion())
                await until(lambda: decode.asked == 1, "the worker works")
            await s.assert_at_rest()
            assert decode.asked == 1
            assert [record.outcome for record in s.records] == ["client-closed"]

    run(play())


@pytest.mark.parametrize("path", [b"/v1/embeddings", b"/v1/models"])
def test_a_request_that_is_only_passed_on(path: bytes) -> None:
    async def play() -> None:
        decode = Waiting()
        passed: Any = request(b"POST", path, b"{}") if b"emb" in path else request(b"GET", path)
        async with scene(decode=[decode]) as s:
            async with connected(s.router) as client:
                await client.send(passed)
                await until(lambda: decode.asked == 1, "the worker works")
            await until(lambda: len(decode.left_s) == 1, "the worker is left")
            await s.assert_at_rest()

    run(play())


def test_a_client_that_stops_reading_counts_as_gone_after_a_while() -> None:
    left: list[bool] = []

    async def flood(leg: WorkerRequest, peer: Peer) -> None:
        await peer.start_stream()
        try:
            while True:
                await peer.event("x" * 10_000)
        except ConnectionError:
            left.append(True)
            raise

    async def play() -> None:
        timeouts = {"client_stall_s": 0.3, "stream_idle_s": 0.1}
        async with scene(prefill=[NumberedPrefill()], decode=[flood], timeouts=timeouts) as s:
            async with connected(s.router) as client:
                client.writer.transport.pause_reading()  # type: ignore[attr-defined]
                await client.send(completion(stream=True))
                await until(lambda: len(left) == 1, "the worker is left")
            await s.assert_at_rest()
            assert [record.outcome for record in s.records] == ["client-closed"]

    run(play())
