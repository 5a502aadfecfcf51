"""Emulated engines keep a ledger of the KV caches that they lend: whatever happens, none stays behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from failure_scene import completion, connected, is_at_rest, listening, run
from raw_client import Answer, Connection
from router_under_test import running_router, until
from test_failures_client_drops import Gate

from dolphin_router.contract import Split
from dolphin_router.http.upstream import ConnectionPool
from dolphin_router.process.router import Router
from dolphin_sim.emulator import EmulatedCluster, EmulatedWorker, WorkerOptions, emulated_cluster, expected_text
from dolphin_sim.emulator.ledger import Lease
from dolphin_sim.emulator.options import EngineName

FAST = 200.0
DROPS = 20
PROMPT = "The quick brown fox jumps over the lazy dog. "


@dataclass
class Scene:
    """A router over emulated workers."""

    router: Router
    cluster: EmulatedCluster

    async def complete(self, number: int, **asked: Any) -> Answer:
        async with connected(self.router) as client:
            return await client.ask(request(number, **asked))

    @property
    def workers(self) -> Iterable[EmulatedWorker]:
        return (*self.cluster.prefill, *self.cluster.decode)

    def asked(self, workers: Iterable[EmulatedWorker]) -> int:
        """Return how many completions workers have been asked for."""
        return sum(received.path == "/v1/completions" for worker in workers for received in worker.requests)

    @property
    def leases(self) -> list[Lease]:
        return [lease for worker in self.cluster.prefill for lease in worker.ledger.leases]

    def lease_ends(self) -> set[str]:
        return {lease.end for lease in self.leases}

    async def assert_at_rest(self) -> None:
        """Nothing runs, no KV cache is kept or was left to its lease, and the router made no mistake."""
        await until(lambda: is_at_rest(self.router), "places and loads are given back")
        await until(lambda: all(worker.is_idle for worker in self.workers), "the workers are idle")
        await until(lambda: "open" not in self.lease_ends(), "no KV cache is kept", limit_s=2.0)
        assert self.lease_ends() <= {"pulled", "aborted"}
        for worker in self.workers:
            assert not worker.ledger.errors
        await until(lambda: not any(worker.engine.memory.used_share for worker in self.workers), "no memory is held")
        assert self.router.plane.stranded_leases == 0


def request(number: int, *, tokens: int = 20, **asked: Any) -> bytes:
    return completion(prompt=prompt(number), model="emulated", max_tokens=tokens, ignore_eos=True, **asked)


def prompt(number: int) -> str:
    return f"{number} " + PROMPT * 20


@asynccontextmanager
async def scene(
    *, engine: EngineName = "vllm-nixl", time_scale: float = FAST, old_parameters: bool = False, **settings: Any
) -> AsyncIterator[Scene]:
    options = WorkerOptions(
        engine=engine, time_scale=time_scale, kv_lease_s=20.0 * time_scale, old_parameters=old_parameters
    )
    async with (
        emulated_cluster(Split(prefill=2, decode=2), options) as cluster,
        running_router(
            prefill=[worker.url for worker in cluster.prefill],
            decode=[worker.url for worker in cluster.decode],
            engine=engine,
            **settings,
        ) as router,
    ):
        yield Scene(router, cluster)


@pytest.mark.parametrize("old_parameters", [False, True])
def test_remote_answers_are_right_and_every_kv_cache_is_taken(old_parameters: bool) -> None:
    async def play() -> None:
        async with scene(old_parameters=old_parameters) as s:
            for number in range(20):
                answer = await s.complete(number)
                assert answer.json()["choices"][0]["text"] == expected_text(prompt(number), 20)
            assert s.lease_ends() == {"pulled"}
            await s.assert_at_rest()

    run(play())


async def leave_often(s: Scene, when: Callable[[int, Connection], Awaitable[None]], **asked: Any) -> None:
    """Send requests and leave each when its time has come."""
    for number in range(DROPS):
        async with connected(s.router) as client:
            await client.send(request(number, **asked))
            await when(number, client)


@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_leave_during_the_prefill_leave_nothing_behind(stream: bool) -> None:
    async def play() -> None:
        async with scene(time_scale=1.0) as s:

            async def prefill_works(number: int, client: Connection) -> None:
                await until(lambda: s.asked(s.cluster.prefill) == number + 1, "the prefill worker has the request")

            await leave_often(s, prefill_works, stream=stream)
            await s.assert_at_rest()
            assert s.lease_ends() == set()
            assert s.asked(s.cluster.decode) == 0

    run(play())


@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_leave_when_the_decode_worker_has_only_just_been_asked_leave_nothing_behind(stream: bool) -> None:
    async def play() -> None:
        async with scene() as s:

            async def decode_is_asked(number: int, client: Connection) -> None:
                while s.asked(s.cluster.decode) < number + 1:
                    await asyncio.sleep(0)

            await leave_often(s, decode_is_asked, stream=stream, tokens=2_000)
            await s.assert_at_rest()
            assert len(s.leases) == DROPS

    run(play())


def test_clients_that_leave_within_a_stream_leave_nothing_behind() -> None:
    async def play() -> None:
        async with scene() as s:

            async def first_event(number: int, client: Connection) -> None:
                await client.head()
                await client.chunk()

            await leave_often(s, first_event, stream=True, tokens=2_000)
            await s.assert_at_rest()
            assert s.lease_ends() == {"pulled"}
            assert len(s.leases) == DROPS

    run(play())


def test_a_prefill_answer_that_crosses_the_client_s_leaving_is_not_lost() -> None:
    """It was on its way to the router when the client left: the KV cache that it names must be freed."""

    async def play() -> None:
        go_on = asyncio.Event()
        crossed = 0
        async with scene() as s:

            async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                """A network that holds the prefill worker's answer back until the client has left."""
                nonlocal crossed
                real_reader, real_writer = await asyncio.open_connection("127.0.0.1", s.cluster.prefill[0].port)
                real_writer.write(await reader.readuntil(b"\r\n\r\n"))
                real_writer.write(await reader.read(1 << 20))
                answer = await real_reader.read(1 << 20)
                crossed += 1
                await go_on.wait()
                assert await reader.read() == b""
                writer.write(answer)
                real_writer.close()

            async with listening(relay) as port:
                loop = asyncio.get_running_loop()
                (state, *_) = s.router.fleet.ready["prefill"]
                s.router.prober.close()
                state.pool = ConnectionPool("127.0.0.1", port, loop=loop, connect_timeout_s=1.0)
                async with connected(s.router) as client:
                    await client.send(request(0))
                    await until(lambda: crossed == 1, "the answer is on its way")
                go_on.set()
                await until(lambda: s.lease_ends() == {"pulled"}, "the KV cache is freed")
                await s.assert_at_rest()

    run(play())


@pytest.mark.parametrize("stream", [False, True])
def test_a_prefill_that_cannot_be_cancelled_runs_to_its_end_and_is_freed_then(stream: bool) -> None:
    """ATOM parks the KV cache of every finished prompt, of aborted ones too, until a decode worker fetches it."""

    async def play() -> None:
        async with scene(engine="atom", time_scale=10.0) as s:

            async def prefill_works(number: int, client: Connection) -> None:
                await until(lambda: s.asked(s.cluster.prefill) == number + 1, "the prefill worker has the request")

            await leave_often(s, prefill_works, stream=stream)
            await until(lambda: is_at_rest(s.router), "places and loads are given back")
            await until(lambda: len(s.leases) == DROPS, "the prefills have ended")
            await s.assert_at_rest()
            assert "pulled" in s.lease_ends()

    run(play())


def test_clients_that_leave_between_the_legs_leave_nothing_behind() -> None:
    async def play() -> None:
        async with scene() as s:
            gates: list[Gate] = []
            for state in s.router.fleet.ready["decode"]:
                gate = Gate()
                state.pool = gate.pool(state.pool)
                gates.append(gate)

            async def decode_leg_waits(number: int, client: Connection) -> None:
                # Each leaves the call of its decode leg and that of its release leg.
                held = 2 * number + 1
                await until(lambda: sum(gate.waiting for gate in gates) == held, "the decode leg waits")

            await leave_often(s, decode_leg_waits)
            for gate in gates:
                gate.open()
            await s.assert_at_rest()
            assert s.lease_ends() == {"pulled"}
            assert len(s.leases) == DROPS

    run(play())


@pytest.mark.parametrize("status", [400, 404, 429])
def test_a_kv_cache_that_a_decode_worker_refuses_is_freed(status: int) -> None:
    async def play() -> None:
        async with scene() as s:
            for worker in s.cluster.decode:
                worker.faults.set(f"{status},times=1")
            statuses = [(await s.complete(number)).status for number in range(8)]
            assert set(statuses) == {200, status}
            await s.assert_at_rest()
            assert s.lease_ends() == {"pulled"}
            assert len(s.leases) == 8

    run(play())


def test_a_kv_cache_that_a_refusing_decode_worker_has_not_seen_is_used_by_the_other() -> None:
    async def play() -> None:
        async with scene() as s:
            s.router.prober.close()
            s.cluster.decode[0].faults.set("refuse")
            for state in s.router.fleet.ready["decode"]:
                state.pool.close()
            for number in range(8):
                answer = await s.complete(number)
                assert answer.json()["choices"][0]["text"] == expected_text(prompt(number), 20)
            assert s.lease_ends() == {"pulled"}
            assert not s.cluster.decode[0].ledger.pulls
            await s.assert_at_rest()

    run(play())


@pytest.mark.parametrize("fault", ["500", "die-after-accept", "hang", "refuse", "no-parameters"])
def test_failing_prefill_workers_leave_nothing_behind(fault: str) -> None:
    async def play() -> None:
        async with scene(timeouts={"prefill_s": 0.3}, on_prefill_error="local") as s:
            s.cluster.prefill[0].faults.set(fault)
            for number in range(6):
                answer = await s.complete(number, stream=number % 2 == 0)
                assert answer.status == 200
            await s.assert_at_rest()

    run(play())


@pytest.mark.parametrize("fault", ["die-mid-stream=2", "stall-mid-stream=2", "die-after-accept", "close-idle"])
def test_failing_decode_workers_cost_no_wrong_answer(fault: str) -> None:
    """What they had may stay until its lease ends; it is counted, and used by nobody else."""

    async def play() -> None:
        async with scene(timeouts={"stream_idle_s": 0.3, "first_byte_s": 0.3}) as s:
            s.cluster.decode[0].faults.set(fault)
            for number in range(8):
                answer = await s.complete(number, stream=number % 2 == 0)
                assert answer.status in (200, 502, 504)
                if answer.status == 200 and number % 2:
                    assert answer.json()["choices"][0]["text"] == expected_text(prompt(number), 20)
            s.cluster.decode[0].faults.clear()
            await until(lambda: is_at_rest(s.router), "places and loads are given back")
            for worker in s.workers:
                assert not worker.ledger.errors
            left = sum(len(worker.ledger.open) for worker in s.cluster.prefill)
            assert left <= s.router.plane.stranded_leases

    run(play())
