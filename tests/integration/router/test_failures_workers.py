"""Workers come, go, fall ill and get well while requests arrive."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from failure_scene import (
    NumberedPrefill,
    Scene,
    answering,
    complete,
    completion,
    connected,
    decode_normally,
    events,
    hang,
    listening,
    run,
    scene,
)
from raw_client import request
from router_under_test import addresses, running_router, until
from scripted_worker import Peer, ScriptedWorker, WorkerRequest

from dolphin_router.adapters.vllm_nixl import VllmNixlAdapter
from dolphin_router.contract import Workers
from dolphin_router.fleet import Fleet
from dolphin_router.probes import Prober
from dolphin_router.sources.config_file import worker_at


def apply(s: Scene, *, prefill: Iterable[ScriptedWorker], decode: Iterable[ScriptedWorker]) -> None:
    """Give the router another list of workers."""
    workers = Workers(
        prefill=addresses([worker.url for worker in prefill]), decode=addresses([worker.url for worker in decode])
    )
    s.router.apply(s.router.config.model_copy(update={"workers": workers}))


async def until_ready(s: Scene, role: Any, count: int) -> None:
    await until(lambda: len(s.router.fleet.ready[role]) == count, f"{count} {role} workers are ready")


# None there


def test_without_a_prefill_worker_requests_go_local_and_remote_again_when_one_appears() -> None:
    async def play() -> None:
        async with scene(prefill=[NumberedPrefill()]) as s:
            assert (await s.complete()).status == 200
            apply(s, prefill=[], decode=s.decodes)
            assert (await s.complete()).status == 200
            apply(s, prefill=s.prefills, decode=s.decodes)
            await until_ready(s, "prefill", 1)
            assert (await s.complete()).status == 200
            taken = [(record.action_taken, record.reason) for record in s.records]
            assert taken == [("remote", "no_table"), ("local", "no_prefill_worker"), ("remote", "no_table")]
            assert len(s.prefills[0].requests) == 2
            await s.assert_at_rest()

    run(play())


def test_without_a_prefill_worker_requests_are_refused_where_the_operator_wants_that() -> None:
    async def play() -> None:
        async with scene(on_no_prefill_worker="fail") as s:
            answer = await s.complete()
            assert answer.status == 503
            assert answer.values(b"retry-after") == [b"1"]
            assert answer.json()["error"]["message"] == "no prefill worker is ready"
            # A request that must be computed where it is answered needs none.
            assert (await s.complete(echo=True)).status == 200
            await s.assert_at_rest()
            assert [(record.outcome, record.status) for record in s.records] == [("failed", 503), ("completed", 200)]

    run(play())


def test_without_a_decode_worker_requests_are_refused_and_the_router_is_not_ready() -> None:
    async def play() -> None:
        async with scene(prefill=[NumberedPrefill()]) as s:
            assert (await get(s, b"/ready")).status == 200
            apply(s, prefill=s.prefills, decode=[])
            answer = await s.complete()
            assert answer.status == 503
            assert answer.values(b"retry-after") == [b"1"]
            assert answer.json()["error"]["message"] == "no decode worker is ready"
            assert (await get(s, b"/ready")).status == 503
            assert (await get(s, b"/health")).status == 200
            assert (await get(s, b"/v1/models")).status == 503
            assert not s.prefills[0].requests
            apply(s, prefill=s.prefills, decode=s.decodes)
            await until_ready(s, "decode", 1)
            assert (await get(s, b"/ready")).status == 200
            assert (await s.complete()).status == 200
            await s.assert_at_rest()

    run(play())


async def get(s: Scene, path: bytes) -> Any:
    async with connected(s.router) as client:
        return await client.ask(request(b"GET", path))


def test_a_crowd_that_waits_is_refused_at_once_when_the_last_decode_worker_goes() -> None:
    """Each refusal makes room for the next one, hundreds in a row."""

    async def play() -> None:
        async with scene(decode=[hang], limits={"concurrent_requests": 1}) as s, AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(s.router)) for _ in range(600)]
            await clients[0].send(completion(prompt="hi"))
            await until(lambda: s.router.plane.admission.taken == 1, "the first is worked on")
            for client in clients[1:]:
                await client.send(completion(prompt="hi"))
            await until(lambda: s.router.plane.admission.waiting == 599, "the others wait")
            apply(s, prefill=[], decode=[])
            clients[0].writer.transport.abort()
            for client in clients[1:]:
                answer = await client.answer()
                assert (answer.status, answer.values(b"retry-after")) == (503, [b"1"])
            await s.assert_at_rest()

    run(play())


# The list changes


def test_a_worker_that_is_taken_off_the_list_finishes_its_streams() -> None:
    released = asyncio.Event()

    async def script(leg: WorkerRequest, peer: Peer) -> None:
        await peer.start_stream()
        await peer.event("first")
        await released.wait()
        await peer.event("last")
        await peer.end_stream()

    async def play() -> None:
        async with scene(prefill=[NumberedPrefill()], decode=[script, decode_normally]) as s:
            async with connected(s.router) as client:
                await client.send(completion(stream=True))
                assert (await client.head()).status == 200
                assert b"first" in await client.chunk()
                (old,) = [state for state in s.router.fleet.workers if state.running_decodes]
                apply(s, prefill=[], decode=s.decodes[1:])
                assert old not in s.router.fleet.workers
                assert (await s.complete()).status == 200
                assert len(s.decodes[0].requests) == 1
                # It comes back while it is still at work: what it has to do is not forgotten.
                apply(s, prefill=[], decode=s.decodes)
                assert old in s.router.fleet.workers
                assert old.running_decodes == 1
                released.set()
                rest = b""
                while piece := await client.chunk():
                    rest += piece
                assert events(rest)[-1] == b"[DONE]"
            await s.assert_at_rest()
            assert [record.outcome for record in s.records] == ["completed", "completed"]

    run(play())


def test_lists_that_flap_under_load_cost_no_request() -> None:
    async def play() -> None:
        prefills = [NumberedPrefill(), NumberedPrefill()]
        async with scene(prefill=prefills, decode=[decode_normally, decode_normally]) as s:
            stop = asyncio.Event()
            p, d = s.prefills, s.decodes
            lists = [(p, d), (p[:1], d), (p[1:], d[:1]), ([], d[:1]), (p, d[:1]), (p[::-1], d[::-1])]
            statuses: list[int] = []

            async def load(stream: bool) -> None:
                async with connected(s.router) as client:
                    while not stop.is_set():
                        answer = await client.ask(completion(stream=stream))
                        statuses.append(answer.status)
                        assert b"[DONE]" in answer.body if stream else answer.json()

            tasks = [asyncio.ensure_future(load(stream=number % 2 == 0)) for number in range(8)]
            for number in range(75):
                prefill, decode = lists[number % len(lists)]
                apply(s, prefill=prefill, decode=decode)
                await asyncio.sleep(0.02)
            stop.set()
            await asyncio.gather(*tasks)
            assert len(statuses) > 100
            assert set(statuses) == {200}
            await s.assert_at_rest()
            assert {record.action_taken for record in s.records} == {"local", "remote"}
            assert s.router.plane.stranded_leases == 0

    run(play())


# Readiness


def test_a_worker_is_out_of_use_after_some_failed_probes_and_back_after_one_good_one() -> None:
    async def play() -> None:
        async with scene(decode=[decode_normally, decode_normally]) as s:
            s.router.prober.close()
            fleet = s.router.fleet
            prober = Prober(fleet, VllmNixlAdapter(), interval_s=0.02, timeout_s=1.0, failures=3)
            prober.follow()
            ill, well = fleet.workers
            s.decodes[0].is_healthy = False
            await until(lambda: not ill.is_ready, "the worker is out of use")
            assert well.is_ready
            for _ in range(5):
                assert (await s.complete()).status == 200
            assert not s.decodes[0].requests
            s.decodes[0].is_healthy = True
            await until(lambda: ill.is_ready, "the worker is back")
            assert fleet.ready["decode"] == [ill, well]
            prober.close()

    run(play())


@pytest.mark.parametrize(("failures", "leaves"), [(2, False), (3, True)])
def test_how_many_probes_may_fail(failures: int, leaves: bool) -> None:
    async def play() -> None:
        was_ready: list[bool] = []
        fleet = Fleet(asyncio.get_running_loop(), connect_timeout_s=1.0)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await reader.readuntil(b"\r\n\r\n"):
                was_ready.append(bool(fleet.ready["decode"]))
                status = 503 if 5 <= len(was_ready) < 5 + failures else 200
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % status)

        async with listening(serve) as port:
            fleet.update([worker_at(addresses([f"http://127.0.0.1:{port}"])[0], "decode")])
            prober = Prober(fleet, VllmNixlAdapter(), interval_s=0.01, failures=3)
            prober.follow()
            await until(lambda: len(was_ready) >= 12, "it is probed")
            prober.close()
            fleet.close()
        # Not before the first good probe; then as long as no three have failed in a row.
        assert was_ready[0] is False
        assert all(was_ready[1:7])
        assert was_ready[5 + failures - 1] is not leaves
        assert was_ready[-1] is True

    run(play())


def test_a_worker_that_does_not_answer_probes_in_time_is_not_ready() -> None:
    async def play() -> None:
        probes = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal probes
            await reader.readuntil(b"\r\n\r\n")
            probes += 1
            await reader.read(-1)

        async with (
            listening(serve) as port,
            running_router(decode=[f"http://127.0.0.1:{port}"], wait_for_workers=False) as router,
        ):
            router.prober.close()
            prober = Prober(router.fleet, VllmNixlAdapter(), interval_s=0.01, timeout_s=0.05)
            prober.follow()
            assert (await complete(router)).status == 503
            await until(lambda: probes > 3, "it is probed")
            assert (await complete(router)).status == 503
            prober.close()

    run(play())


def test_what_an_adapter_must_know_of_a_worker_is_asked_for_again_when_it_changes() -> None:
    """A prefill worker of Mooncake has another engine id after a restart, be it ever so quick."""
    engine = ["engine-1"]

    async def bootstrap(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            body = json.dumps({"0": {"engine_id": engine[0], "worker_addr": {}}}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    async def play() -> None:
        async with (
            listening(bootstrap) as port,
            scene(prefill=[answering(200, b"{}")], decode=[decode_normally]) as s,
            running_router(engine="vllm-mooncake") as router,
        ):
            address = addresses([s.prefills[0].url])[0].model_copy(update={"bootstrap_port": port})
            workers = Workers(prefill=(address,), decode=addresses([s.decodes[0].url]))
            router.prober.close()
            router.prober = Prober(router.fleet, router.adapter, interval_s=0.02)
            router.apply(router.config.model_copy(update={"workers": workers}))
            await until(lambda: all(state.is_ready for state in router.fleet.workers), "all are ready")
            for name in ("engine-1", "engine-2"):
                engine[0] = name
                await until(knows(router.fleet, name), "the engine id is known")
                assert (await complete(router)).status == 200
                told = s.decodes[0].requests[-1].json()["kv_transfer_params"]
                assert told["remote_engine_id"] == name

    def knows(fleet: Fleet, name: str) -> Callable[[], bool]:
        return lambda: fleet.ready["prefill"][0].worker.facts == {"ranks": ((0, name),)}

    run(play())
