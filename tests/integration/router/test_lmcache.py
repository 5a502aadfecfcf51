"""vLLM with LMCache: the decode worker is asked when the KV cache has been announced, and never before."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from failure_scene import JSON, Scene, answering, completion, connected, decode_normally, die, is_at_rest, run
from raw_client import Answer
from router_under_test import OPTIONS, until
from scripted_worker import Peer, Script, ScriptedWorker, WorkerRequest, scripted_worker
from serve_process import run_to_end, serving

from dolphin_router.contract import DocumentError, RouterConfig, Split, WorkerAddress, Workers
from dolphin_router.exchange.kv_arrivals import KvArrivals
from dolphin_router.process.router import Router
from dolphin_router.process.view import View
from dolphin_router.request_record import RequestRecord
from dolphin_sim.cli.cluster import router_document
from dolphin_sim.emulator import EmulatedCluster, WorkerOptions, emulated_cluster, expected_text

RANKS = 2
PATIENT = {"notice_s": 30.0}
NO_NOTICE = {"notice_s": 0.2}
"""For tests in which a notice is missing."""


async def prefill_normally(request: WorkerRequest, peer: Peer) -> None:
    await peer.answer(b'{"choices": [{"text": "x"}], "kv_transfer_params": null}', headers=[JSON])


class Stage(Scene):
    """Scripted workers, and a prefill worker's side of the notices that the test sends itself."""

    def __init__(self, router: Router, prefill: ScriptedWorker, decodes: list[ScriptedWorker], push: Any) -> None:
        super().__init__(router, [prefill], decodes, [])
        self._push = push

    @property
    def arrivals(self) -> KvArrivals:
        assert self.router.plane.arrivals is not None
        return self.router.plane.arrivals

    def transfers(self) -> list[dict[str, Any]]:
        """What the prefill worker was told about each KV cache."""
        return [leg.json()["kv_transfer_params"]["disagg_spec"] for leg in self.prefills[0].requests]

    def announce(self, transfer_id: str, *, times: int = RANKS) -> None:
        for _ in range(times):
            self.send(msgspec.msgpack.encode({"type": "ProxyNotif", "req_id": transfer_id}))

    def send(self, *frames: bytes) -> None:
        self._push.send_multipart(frames, zmq.NOBLOCK)

    def decode_legs(self, *, releases: bool = False) -> list[WorkerRequest]:
        legs = [leg for worker in self.decodes for leg in worker.requests]
        return [leg for leg in legs if (leg.json()["max_tokens"] == 1) == releases]

    async def prefill_is_answered(self) -> None:
        """Wait until the router has read the prefill worker's answer to the latest request."""
        await until(lambda: bool(self.prefills[0].requests), "the prefill worker is asked")
        (state,) = self.router.fleet.ready["prefill"]
        await until(lambda: state.open_requests == 0, "the prefill worker's answer is read")

    async def nothing_is_awaited(self) -> None:
        await until(lambda: len(self.arrivals) == 0, "no KV cache is awaited")


@asynccontextmanager
async def free_endpoint() -> AsyncIterator[str]:
    """Keep a port that a router can listen at and nobody else gets."""
    with socket.socket() as placeholder:
        placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        placeholder.bind(("127.0.0.1", 0))
        yield f"tcp://127.0.0.1:{placeholder.getsockname()[1]}"


@asynccontextmanager
async def stage(
    prefill: Script = prefill_normally, decode: Sequence[Script | None] = (decode_normally,), **settings: Any
) -> AsyncIterator[Stage]:
    """Run a prefill worker and decode workers with these scripts; none for one on whose port nobody listens."""
    async with AsyncExitStack() as stack:
        prefill_worker = await stack.enter_async_context(scripted_worker(prefill))
        decodes, addresses = [], []
        for place, script in enumerate(decode):
            url = "http://127.0.0.1:1"
            if script is not None:
                decodes.append(await stack.enter_async_context(scripted_worker(script)))
                url = decodes[-1].url
            # Only the prefill worker would use these ports.
            init, alloc = (tuple(first + 10 * place + rank for rank in range(RANKS)) for first in (7300, 7400))
            addresses.append(WorkerAddress(url=url, lmcache_init_ports=init, lmcache_alloc_ports=alloc))
        endpoint = await stack.enter_async_context(free_endpoint())
        context = zmq.Context()
        stack.callback(context.destroy, linger=0)
        push = context.socket(zmq.PUSH)
        push.connect(endpoint)
        workers = Workers(prefill=(WorkerAddress(url=prefill_worker.url),), decode=tuple(addresses))
        settings = {"timeouts": PATIENT, **settings}
        router = Router(
            RouterConfig(engine="vllm-lmcache", workers=workers, notice_endpoint=endpoint, **settings), OPTIONS
        )
        await router.start()
        stack.push_async_callback(router.stop)
        router.prober.close()
        for state in router.fleet.workers:
            router.fleet.set_ready(state, True)
        play = Stage(router, prefill_worker, decodes, push)
        finished = router.finished

        def keep(record: RequestRecord) -> None:
            play.records.append(record)
            finished(record)

        router.finished = keep  # type: ignore[method-assign]
        yield play


async def answered(asked: Awaitable[Answer]) -> Answer:
    answer = await asked
    assert answer.status == 200
    return answer


# The notices


def test_the_decode_worker_is_asked_when_every_rank_s_notice_has_come() -> None:
    async def play() -> None:
        async with stage() as s:
            asked = asyncio.ensure_future(s.complete())
            await s.prefill_is_answered()
            (transfer,) = s.transfers()
            assert (transfer["receiver_init_port"], transfer["receiver_alloc_port"]) == ([7300, 7301], [7400, 7401])
            s.announce(transfer["req_id"], times=1)
            await until(lambda: s.arrivals.taken == 1, "a notice has come")
            assert not s.decode_legs()
            s.announce(transfer["req_id"], times=1)
            await answered(asked)
            (leg,) = s.decode_legs()
            assert leg.json()["max_tokens"] == 50
            await s.assert_at_rest()
            (record,) = s.records
            assert (record.outcome, record.action_taken, record.reason, record.errors) == (
                "completed",
                "remote",
                "no_table",
                [],
            )
            assert len(s.arrivals) == 0

    run(play())


def test_notices_may_come_before_the_prefill_worker_s_answer() -> None:
    may_answer = asyncio.Event()

    async def slow_prefill(request: WorkerRequest, peer: Peer) -> None:
        await may_answer.wait()
        await prefill_normally(request, peer)

    async def play() -> None:
        async with stage(slow_prefill) as s:
            asked = asyncio.ensure_future(s.complete())
            await until(lambda: bool(s.prefills[0].requests), "the prefill worker is asked")
            s.announce(s.transfers()[0]["req_id"])
            await until(lambda: s.arrivals.taken == RANKS, "the notices have come")
            assert not s.decode_legs()
            may_answer.set()
            await answered(asked)
            assert s.records[0].reason == "no_table"
            await s.nothing_is_awaited()

    run(play())


def used(s: Stage, transfer: dict[str, Any]) -> ScriptedWorker:
    """Return the decode worker that a KV cache was pushed to."""
    return s.decodes[(transfer["receiver_init_port"][0] - 7300) // 10]


@pytest.mark.parametrize("notices", [0, 1])
def test_without_all_notices_another_decode_worker_computes_the_prompt(notices: int) -> None:
    """The one that the KV cache was on its way to might answer from memory that has not been written yet."""

    async def play() -> None:
        async with stage(decode=[decode_normally] * 2, timeouts=NO_NOTICE) as s:
            asked = asyncio.ensure_future(s.complete())
            await s.prefill_is_answered()
            (transfer,) = s.transfers()
            s.announce(transfer["req_id"], times=notices)
            await answered(asked)
            assert not used(s, transfer).requests
            (record,) = s.records
            assert (record.outcome, record.action_taken, record.reason) == ("completed", "local", "not_announced")
            assert record.errors == ["no notice of the KV cache came within 0.2 s"]
            await s.assert_at_rest()
            # A KV cache that may be half there cannot be dropped either.
            await until(lambda: s.router.plane.stranded_leases == 1, "the KV cache is counted")
            await s.nothing_is_awaited()
            assert len(s.decode_legs()) == 1
            assert not s.decode_legs(releases=True)

    run(play())


def test_without_a_notice_and_another_decode_worker_there_is_no_answer() -> None:
    async def play() -> None:
        async with stage(timeouts=NO_NOTICE) as s:
            answer = await s.complete()
            assert (answer.status, s.records[0].outcome) == (504, "failed")
            assert "no notice of the KV cache came within 0.2 s" in answer.json()["error"]["message"]
            assert not s.decodes[0].requests
            await s.assert_at_rest()

    run(play())


def test_a_kv_cache_that_comes_too_late_is_dropped_by_its_decode_worker() -> None:
    async def play() -> None:
        async with stage(decode=[decode_normally] * 2, timeouts=NO_NOTICE) as s:
            asked = asyncio.ensure_future(s.complete())
            await s.prefill_is_answered()
            # What follows has time.
            config = s.router.plane.config
            timeouts = config.timeouts.model_copy(update={"notice_s": 30.0})
            s.router.plane.config = config.model_copy(update={"timeouts": timeouts})
            await answered(asked)
            (transfer,) = s.transfers()
            assert not used(s, transfer).requests
            s.announce(transfer["req_id"])
            await until(lambda: len(s.decode_legs(releases=True)) == 1, "the KV cache is dropped")
            assert used(s, transfer).requests == s.decode_legs(releases=True)
            await s.assert_at_rest()
            assert s.router.plane.stranded_leases == 0

    run(play())


def test_nonsense_strangers_notices_and_notices_that_come_again_are_counted_and_change_nothing() -> None:
    async def play() -> None:
        async with stage() as s:
            nonsense = [
                (b"",),
                (b"nonsense",),
                (b"\xc1",),
                (msgspec.msgpack.encode({"type": "ProxyNotif"}),),
                (msgspec.msgpack.encode({"type": "ProxyNotif", "req_id": 7}),),
                (msgspec.msgpack.encode({"type": "ProxyNotif", "req_id": "9" * 900}), b""),
                (b"topic", msgspec.msgpack.encode({"type": "ProxyNotif", "req_id": "1"})),
            ]
            for frames in nonsense:
                s.send(*frames)
            for stranger in ("1", "-1", "9" * 900):
                s.announce(stranger, times=1)
            await until(lambda: s.arrivals.malformed == len(nonsense), "the nonsense is counted")
            await until(lambda: s.arrivals.unknown == 3, "the strangers are counted")
            asked = asyncio.ensure_future(s.complete())
            await s.prefill_is_answered()
            s.announce(s.transfers()[0]["req_id"], times=3 * RANKS)
            await answered(asked)
            await until(lambda: s.arrivals.unknown == 3 + 2 * RANKS, "the repetitions are counted")
            assert len(s.decode_legs()) == 1
            assert not s.decode_legs(releases=True)
            text = b"".join(View(s.router).metrics()).decode()
            assert f'dolphin_kv_notices_total{{what="taken"}} {RANKS}\n' in text
            assert f'dolphin_kv_notices_total{{what="unknown"}} {3 + 2 * RANKS}\n' in text
            assert f'dolphin_kv_notices_total{{what="malformed"}} {len(nonsense)}\n' in text

    run(play())


def test_whoever_sends_more_than_a_notice_disturbs_nobody() -> None:
    async def play() -> None:
        async with stage() as s:
            context = zmq.Context()
            try:
                stranger = context.socket(zmq.PUSH)
                stranger.connect(s.router.config.notice_endpoint)
                stranger.send(b"x" * 10_000_000, zmq.NOBLOCK)
                asked = asyncio.ensure_future(s.complete())
                await s.prefill_is_answered()
                s.announce(s.transfers()[0]["req_id"])
                await answered(asked)
                assert s.arrivals.malformed == 0
            finally:
                context.destroy(linger=0)

    run(play())


def test_many_requests_at_once_each_wait_for_their_own_notices() -> None:
    async def play() -> None:
        async with stage() as s:
            asked = [asyncio.ensure_future(s.complete(prompt=f"{number} " * 40)) for number in range(20)]
            await until(lambda: len(s.prefills[0].requests) == 20, "the prefill worker is asked")
            for place, transfer in enumerate(s.transfers()):
                s.announce(transfer["req_id"])
                await until(lambda: len(s.decode_legs()) == place + 1, "one decode leg goes")  # noqa: B023
                assert s.decode_legs()[-1].json()["prompt"] == s.prefills[0].requests[place].json()["prompt"]
            for each in asked:
                await answered(each)
            await s.assert_at_rest()

    run(play())


# Clients that leave


@pytest.mark.parametrize("decodes", [1, 3])
def test_a_client_that_leaves_before_the_notice_has_its_kv_cache_dropped_where_it_is(decodes: int) -> None:
    async def play() -> None:
        async with stage(decode=[decode_normally] * decodes) as s:
            async with connected(s.router) as client:
                await client.send(completion())
                await s.prefill_is_answered()
            await until(lambda: is_at_rest(s.router), "places and loads are given back")
            assert not any(worker.requests for worker in s.decodes)
            (transfer,) = s.transfers()
            decode = used(s, transfer)
            # Not to be asked for new work is no reason to keep a KV cache.
            state = next(state for state in s.router.fleet.workers if decode.url.endswith(state.name))
            s.router.fleet.set_ready(state, False)
            s.announce(transfer["req_id"])
            await until(lambda: len(s.decode_legs(releases=True)) == 1, "the KV cache is dropped")
            assert len(decode.requests) == 1
            await s.nothing_is_awaited()
            assert s.records[0].outcome == "client-closed"
            assert s.router.plane.stranded_leases == 0

    run(play())


def test_a_kv_cache_that_is_never_announced_to_a_client_that_left_is_counted() -> None:
    async def play() -> None:
        async with stage(timeouts=NO_NOTICE) as s:
            async with connected(s.router) as client:
                await client.send(completion())
                await s.prefill_is_answered()
            await until(lambda: s.router.plane.stranded_leases == 1, "the KV cache is counted")
            await s.nothing_is_awaited()
            s.announce(s.transfers()[0]["req_id"])
            await until(lambda: s.arrivals.unknown == RANKS, "the notices are for nobody")
            assert not s.decodes[0].requests
            await s.assert_at_rest()

    run(play())


def test_what_a_prefill_worker_pushes_for_a_client_that_left_it_is_dropped() -> None:
    async def push_and_hang(request: WorkerRequest, peer: Peer) -> None:
        await peer.until_closed()

    async def play() -> None:
        async with stage(push_and_hang) as s:
            async with connected(s.router) as client:
                await client.send(completion())
                await until(lambda: bool(s.prefills[0].requests), "the prefill worker is asked")
            await s.assert_at_rest()
            s.announce(s.transfers()[0]["req_id"])
            await until(lambda: len(s.decode_legs(releases=True)) == 1, "the KV cache is dropped")
            await s.nothing_is_awaited()

    run(play())


# Workers that fail


@pytest.mark.parametrize("prefill", [answering(500), answering(400)])
def test_nothing_is_awaited_of_a_prefill_worker_that_answers_an_error(prefill: Script) -> None:
    async def play() -> None:
        async with stage(prefill) as s:
            assert (await s.complete()).status in (400, 500)
            assert len(s.arrivals) == 0
            s.announce(s.transfers()[0]["req_id"])
            await until(lambda: s.arrivals.unknown == RANKS, "the notices are for nobody")
            assert not s.decodes[0].requests
            await s.assert_at_rest()

    run(play())


def test_a_prefill_worker_that_dies_is_not_awaited_for_ever() -> None:
    async def play() -> None:
        async with stage(die, timeouts=NO_NOTICE) as s:
            assert (await s.complete()).status == 502
            await s.nothing_is_awaited()
            await s.assert_at_rest()

    run(play())


def test_a_kv_cache_on_a_decode_worker_that_cannot_be_reached_is_computed_anew_for_another() -> None:
    async def play() -> None:
        async with stage(decode=[None, decode_normally]) as s:
            asked = asyncio.ensure_future(s.complete())
            await s.prefill_is_answered()
            for place in range(2):
                await until(lambda: len(s.transfers()) == place + 1, "the prefill worker is asked")  # noqa: B023
                s.announce(s.transfers()[place]["req_id"])
                if s.transfers()[place]["receiver_init_port"] == [7310, 7311]:
                    break
            await answered(asked)
            # The one that answers has got a KV cache of its own.
            assert s.transfers()[-1]["receiver_init_port"] == [7310, 7311]
            assert len({transfer["req_id"] for transfer in s.transfers()}) == len(s.transfers())
            await s.assert_at_rest()

    run(play())


@pytest.mark.parametrize("status", [400, 429])
def test_a_kv_cache_whose_decode_leg_is_refused_is_dropped(status: int) -> None:
    async def refuse_once(request: WorkerRequest, peer: Peer) -> None:
        if request.json()["max_tokens"] > 1:
            await peer.answer(b"{}", status=status, headers=[JSON])
        else:
            await decode_normally(request, peer)

    async def play() -> None:
        async with stage(decode=[refuse_once]) as s:
            asked = asyncio.ensure_future(s.complete())
            await s.prefill_is_answered()
            s.announce(s.transfers()[0]["req_id"])
            assert (await asked).status == status
            await until(lambda: len(s.decode_legs(releases=True)) == 1, "the KV cache is dropped")

    run(play())


# Emulated engines


@asynccontextmanager
async def emulated(*, time_scale: float) -> AsyncIterator[tuple[Router, EmulatedCluster]]:
    options = WorkerOptions(engine="vllm-lmcache", time_scale=time_scale)
    async with emulated_cluster(Split(prefill=2, decode=2), options) as cluster:
        document = router_document(cluster, options) | {"timeouts": PATIENT}
        router = Router(RouterConfig.model_validate_json(json.dumps(document)), OPTIONS)
        await router.start()
        try:
            await until(lambda: all(state.is_ready for state in router.fleet.workers), "the workers are ready")
            yield router, cluster
        finally:
            await router.stop()


def prompt_of(number: int) -> str:
    return f"{number} " + "Once upon a time " * 100


async def assert_nothing_stays(router: Router, cluster: EmulatedCluster) -> None:
    await until(lambda: is_at_rest(router), "places and loads are given back")
    for worker in cluster.workers:
        await worker.wait_until(lambda worker=worker: worker.is_idle and not worker.ledger.open)
        await worker.wait_until(lambda worker=worker: worker.engine.memory.used_share == 0.0)
        assert not worker.ledger.errors
    assert router.plane.stranded_leases == 0


def test_every_kv_cache_that_is_pushed_is_used() -> None:
    async def play() -> None:
        async with emulated(time_scale=200.0) as (router, cluster):
            for number in range(20):
                async with connected(router) as client:
                    answer = await client.ask(completion(prompt=prompt_of(number), model="emulated", max_tokens=9))
                assert answer.json()["choices"][0]["text"] == expected_text(prompt_of(number), 9)
            await assert_nothing_stays(router, cluster)
            assert router.plane.arrivals is not None
            assert (router.plane.arrivals.taken, len(router.plane.arrivals)) == (20, 0)
            leases = [lease for worker in cluster.decode for lease in worker.ledger.leases]
            assert [lease.end for lease in leases] == ["pulled"] * 20

    run(play())


def arrived(cluster: EmulatedCluster) -> int:
    return sum(len(worker.ledger.leases) for worker in cluster.decode)


def prefills_asked(cluster: EmulatedCluster) -> int:
    return sum(leg.path == "/v1/completions" for worker in cluster.prefill for leg in worker.requests)


def prefills_answered(cluster: EmulatedCluster) -> int:
    return sum(leg.path == "/v1/completions" and leg.end == "answered" for w in cluster.prefill for leg in w.requests)


@pytest.mark.parametrize("seen", [prefills_asked, prefills_answered, arrived])
def test_whenever_a_client_leaves_nothing_stays_on_any_worker(seen: Callable[[EmulatedCluster], int]) -> None:
    async def play() -> None:
        async with emulated(time_scale=20.0) as (router, cluster):
            for number in range(20):
                before = seen(cluster)
                async with connected(router) as client:
                    await client.send(completion(prompt=prompt_of(number), model="emulated", max_tokens=500))
                    while seen(cluster) == before:
                        await asyncio.sleep(0)
            await assert_nothing_stays(router, cluster)

    run(play())


# The command


def write(folder: Path, **members: Any) -> Path:
    worker = {"url": "http://127.0.0.1:1", "lmcache_init_ports": [7300], "lmcache_alloc_ports": [7400]}
    document = {"engine": "vllm-lmcache", "workers": {"decode": [worker]}, **members}
    file = folder / "router.json"
    file.write_text(json.dumps(document))
    return file


def test_the_command_serves_a_cluster_that_describes_itself(tmp_path: Path) -> None:
    async def play() -> None:
        options = WorkerOptions(engine="vllm-lmcache", time_scale=100.0)
        async with emulated_cluster(Split(prefill=1, decode=1), options) as cluster:
            file = tmp_path / "router.json"
            file.write_text(json.dumps(router_document(cluster, options)))
            urls = [worker.url for worker in cluster.workers]
            async with serving("--config", str(file), workers=urls) as router:
                reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
                body = json.dumps({"model": "emulated", "prompt": prompt_of(1), "max_tokens": 9}).encode()
                writer.write(
                    b"POST /v1/completions HTTP/1.1\r\nhost: r\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
                    % (len(body), body)
                )
                answer = (await reader.read()).partition(b"\r\n\r\n")[2]
                writer.close()
                assert json.loads(answer)["choices"][0]["text"] == expected_text(prompt_of(1), 9)
                assert [lease.end for lease in cluster.decode[0].ledger.leases] == ["pulled"]

    asyncio.run(play())


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--workers", "2"], 2, "--workers is 2, but notices come to tcp://127.0.0.1:{port} and so to one process"),
        ([], 1, "cannot wait for notices at tcp://127.0.0.1:{port}: Address already in use"),
    ],
)
def test_the_command_says_why_it_cannot_wait_for_notices(
    tmp_path: Path, arguments: list[str], code: int, complaint: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file = write(tmp_path, notice_endpoint=f"tcp://127.0.0.1:{port}")
        words = ["serve", "--config", str(file), "--host", "127.0.0.1", "--port", "0", "--admin-port", "0", *arguments]
        ended, errors = asyncio.run(run_to_end(*words))
    assert ended == code, errors
    assert complaint.format(port=port) in errors


def test_flags_cannot_say_what_lmcache_needs() -> None:
    code, errors = asyncio.run(run_to_end("serve", "--engine", "vllm-lmcache", "--decode", "http://127.0.0.1:1"))
    assert code == 2
    assert "give --config" in errors


def test_the_address_of_notices_cannot_change_while_the_router_runs() -> None:
    async def play() -> None:
        async with stage() as s:
            changed = s.router.config.model_copy(update={"notice_endpoint": "tcp://127.0.0.1:7500"})
            with pytest.raises(DocumentError, match="notice_endpoint cannot change while the router runs"):
                s.router.apply(changed)

    run(play())


def test_a_worker_s_ports_can_change_while_the_router_runs() -> None:
    async def play() -> None:
        async with stage() as s:
            (decode,) = s.router.config.workers.decode
            moved = decode.model_copy(update={"lmcache_init_ports": (1, 2), "lmcache_alloc_ports": (3, 4)})
            workers = s.router.config.workers.model_copy(update={"decode": (moved,)})
            s.router.apply(s.router.config.model_copy(update={"workers": workers}))
            asked = asyncio.ensure_future(s.complete())
            await s.prefill_is_answered()
            (transfer,) = s.transfers()
            assert (transfer["receiver_init_port"], transfer["receiver_alloc_port"]) == ([1, 2], [3, 4])
            s.announce(transfer["req_id"])
            await answered(asked)

    run(play())
