"""Each fault does what its name says, for as many requests as were asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from dolphin_sim.emulator import EmulatedWorker, expected_text
from dolphin_sim.emulator.faults import Fault

FAST = 200.0
PROMPT = "In a hole in the ground there lived a hobbit. " * 6


@pytest.mark.parametrize(("fault", "status", "wait"), [("500", 500, None), ("429", 429, "1"), ("status=503", 503, "1")])
def test_a_status_on_demand(with_worker: Callable[..., None], fault: str, status: int, wait: str | None) -> None:
    async def scene(client: Any, worker: EmulatedWorker) -> None:
        answer = await client.complete(worker, prompt=PROMPT)
        assert (answer.status_code, answer.headers.get("retry-after")) == (status, wait)
        worker.faults.clear()
        assert (await client.complete(worker, prompt=PROMPT)).status_code == 200
        worker.faults.set(fault + ",times=1")
        assert (await client.complete(worker, prompt=PROMPT)).status_code == status
        assert (await client.complete(worker, prompt=PROMPT)).status_code == 200

    with_worker(scene, time_scale=FAST, faults=(fault,))


def test_refused_connections(with_worker: Callable[..., None]) -> None:
    async def scene(client: Any, worker: EmulatedWorker) -> None:
        worker.faults.set("refuse")
        with pytest.raises(httpx2.ConnectError):
            await client.complete(worker, prompt=PROMPT)
        worker.faults.clear("refuse")
        assert (await client.complete(worker, prompt=PROMPT)).status_code == 200

    with_worker(scene, time_scale=FAST)


def test_dying_after_accept_and_on_idle_connections(with_worker: Callable[..., None]) -> None:
    async def scene(client: Any, worker: EmulatedWorker) -> None:
        worker.faults.set("close-idle,times=1")
        assert (await client.complete(worker, prompt=PROMPT)).status_code == 200
        with pytest.raises((httpx2.ReadError, httpx2.RemoteProtocolError)):
            await client.complete(worker, prompt=PROMPT)
        assert (await client.complete(worker, prompt=PROMPT)).status_code == 200
        worker.faults.set("die-after-accept")
        with pytest.raises((httpx2.ReadError, httpx2.RemoteProtocolError)):
            await client.complete(worker, prompt=PROMPT)

    with_worker(scene, time_scale=FAST)


def test_dying_in_mid_stream(with_worker: Callable[..., None]) -> None:
    async def scene(client: Any, worker: EmulatedWorker) -> None:
        stream = await client.stream(worker, prompt=PROMPT, max_tokens=500, ignore_eos=True)
        assert stream.broke_off
        assert len(stream.chunks) == 3
        with pytest.raises((httpx2.ReadError, httpx2.RemoteProtocolError)):
            await client.complete(worker, prompt=PROMPT)
        await worker.wait_until(lambda: worker.is_idle)
        assert [request.end for request in worker.requests] == ["fault", "fault"]

    with_worker(scene, time_scale=FAST, faults=("die-mid-stream=3",))


@pytest.mark.parametrize("fault", ["hang", "stall-mid-stream=1"])
def test_silence_until_the_client_leaves(with_worker: Callable[..., None], fault: str) -> None:
    async def scene(client: Any, worker: EmulatedWorker) -> None:
        for stream in (True, False):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await client.complete(worker, prompt=PROMPT, stream=stream, max_tokens=100)
            await worker.wait_until(lambda: worker.is_idle)
        worker.faults.clear()
        assert (await client.complete(worker, prompt=PROMPT)).status_code == 200

    with_worker(scene, time_scale=FAST, faults=(fault,))


def test_slow_steps(with_worker: Callable[..., None]) -> None:
    async def scene(client: Any, worker: EmulatedWorker) -> None:
        def step_s() -> float:
            batch = worker.engine.batch
            return batch.step_end_s - worker.engine.pacer.now_s()

        async def first_step_s(prompt: str) -> float:
            task = asyncio.create_task(client.complete(worker, prompt=prompt, max_tokens=1))
            await worker.wait_until(lambda: worker.engine.batch.running_count == 1)
            seconds = step_s()
            await task
            return seconds

        plain_s = await first_step_s("a" + PROMPT * 40)
        worker.faults.set("slow=3")
        assert 2.0 * plain_s < await first_step_s("b" + PROMPT * 40) < 4.0 * plain_s

    with_worker(scene, time_scale=2.0)


def test_lost_kv_and_missing_parameters(with_pair: Callable[..., None]) -> None:
    async def scene(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker) -> None:
        prefill.faults.set("no-parameters,times=1")
        assert await client.prefill(prefill, PROMPT) is None
        assert not prefill.ledger.leases
        parameters = await client.prefill(prefill, PROMPT)
        prefill.faults.set("drop-kv")
        answer = await client.complete(decode, prompt=PROMPT, max_tokens=3, kv_transfer_params=parameters)
        assert answer.status_code == 500
        again = await client.prefill(prefill, PROMPT)
        answer = await client.complete(decode, prompt=PROMPT, max_tokens=3, kv_transfer_params=again)
        assert answer.status_code == 500
        assert [lease.end for lease in prefill.ledger.leases] == ["dropped", "dropped"]
        assert not prefill.ledger.errors
        assert not decode.ledger.errors
        local = await client.complete(decode, prompt=PROMPT, max_tokens=3)
        assert local.json()["choices"][0]["text"] == expected_text(PROMPT, 3)

    with_pair(scene, time_scale=FAST, kv_lease_s=2_000.0)


def test_faults_are_set_over_http_too(with_worker: Callable[..., None]) -> None:
    async def scene(client: Any, worker: EmulatedWorker) -> None:
        faults = worker.url + "/emulator/faults"
        assert (await client.http.post(faults, json={"faults": ["500"]})).status_code == 200
        assert (await client.complete(worker, prompt=PROMPT)).status_code == 500
        assert (await client.http.post(faults, json={"faults": []})).status_code == 200
        assert (await client.complete(worker, prompt=PROMPT)).status_code == 200
        assert (await client.http.post(faults, json={"faults": ["nonsense"]})).status_code == 400
        ledger = (await client.http.get(worker.url + "/emulator/ledger")).json()
        assert ledger == {"leases": [], "pulls": [], "errors": []}

    with_worker(scene, time_scale=FAST)


@pytest.mark.parametrize("text", ["nonsense", "slow=0", "slow=x", "status=200", "500,times=0", "500,often"])
def test_faults_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="fault"):
        Fault.parse(text)
