"""Hand-overs by the protocols of Mooncake, SGLang, ATOM and llm-d's sidecar."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from dolphin_sim.emulator import EmulatedWorker, emulated_worker, expected_text
from dolphin_sim.emulator.connectors.lmcache import LmcacheConnector
from dolphin_sim.emulator.tokens import tokenize

FAST = 200.0
PROMPT = "Call me Ishmael. Some years ago, never mind how long precisely. " * 8
PREFILLED = {"do_remote_decode": True, "do_remote_prefill": False}


async def mooncake_legs(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker, **body: Any) -> Any:
    """Send both legs at once; return the decode worker's answer."""
    query = await client.http.get(f"http://127.0.0.1:{prefill.bootstrap_port}/query")
    engine_id = query.json()["0"]["engine_id"]
    fetch = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "transfer_id": "xfer-1",
        "remote_bootstrap_addr": f"http://127.0.0.1:{prefill.bootstrap_port}",
        "remote_engine_id": engine_id,
    }
    decoding = asyncio.create_task(client.complete(decode, prompt=PROMPT, kv_transfer_params=fetch, **body))
    await decode.wait_until(lambda: bool(decode.ledger.pulls))
    parameters = PREFILLED | {"transfer_id": "xfer-1"}
    first = await client.complete(prefill, prompt=PROMPT, max_tokens=1, kv_transfer_params=parameters)
    assert first.json()["kv_transfer_params"] is None
    return await decoding


def test_mooncake_s_legs_meet_by_transfer_id(with_pair: Callable[..., None]) -> None:
    async def scene(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker) -> None:
        answer = await mooncake_legs(client, prefill, decode, max_tokens=9)
        assert answer.json()["choices"][0]["text"] == expected_text(PROMPT, 9)
        assert [lease.end for lease in prefill.ledger.leases] == ["pulled"]
        local = await client.complete(decode, prompt=PROMPT, max_tokens=9)
        assert local.json()["choices"][0]["text"] == expected_text(PROMPT, 9)

    with_pair(scene, engine="vllm-mooncake", time_scale=FAST)


def test_mooncake_s_prefill_worker_keeps_what_a_client_left(with_pair: Callable[..., None]) -> None:
    async def scene(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker) -> None:
        parameters = PREFILLED | {"transfer_id": "xfer-2"}
        await client.complete(prefill, prompt=PROMPT, max_tokens=1, kv_transfer_params=parameters)
        assert prefill.ledger.open
        await prefill.wait_until(lambda: bool(prefill.ledger.expired))
        assert prefill.engine.memory.used_share == 0.0

    with_pair(scene, engine="vllm-mooncake", time_scale=FAST, kv_lease_s=20.0)


def test_mooncake_s_engine_id_must_be_the_current_one(with_pair: Callable[..., None]) -> None:
    async def scene(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker) -> None:
        fetch = {
            "do_remote_prefill": True,
            "transfer_id": "xfer-3",
            "remote_bootstrap_addr": f"http://127.0.0.1:{prefill.bootstrap_port}",
            "remote_engine_id": "before the restart",
        }
        answer = await client.complete(decode, prompt=PROMPT, kv_transfer_params=fetch)
        assert answer.status_code == 500
        assert "knows no engine before the restart" in decode.ledger.errors[0]

    with_pair(scene, engine="vllm-mooncake", time_scale=FAST)


def room(prefill: EmulatedWorker, number: int) -> dict[str, Any]:
    """The three members of SGLang."""
    return {"bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.bootstrap_port, "bootstrap_room": number}


def test_sglang_s_legs_meet_in_a_room(with_pair: Callable[..., None]) -> None:
    async def scene(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker) -> None:
        body = {"prompt": PROMPT, "max_tokens": 12, **room(prefill, 77)}
        first, stream = await asyncio.gather(client.complete(prefill, **body), client.stream(decode, **body))
        assert first.json()["usage"]["completion_tokens"] == 1
        assert stream.text() == expected_text(PROMPT, 12)
        assert [lease.end for lease in prefill.ledger.leases] == ["pulled"]

    with_pair(scene, engine="sglang", time_scale=FAST)


def test_sglang_takes_lists_for_batches_and_choices(with_pair: Callable[..., None]) -> None:
    async def scene(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker) -> None:
        prompts = [PROMPT, PROMPT[::-1]]
        single = room(prefill, 0)
        lists = {name: [value] * 4 for name, value in single.items()} | {"bootstrap_room": [5, 6, 7, 8]}
        body = {"prompt": prompts, "max_tokens": 4, "n": 2, **lists}
        _, answer = await asyncio.gather(client.complete(prefill, **body), client.complete(decode, **body))
        texts = [choice["text"] for choice in answer.json()["choices"]]
        assert texts == [expected_text(prompt, 4, choice=number) for prompt in prompts for number in (0, 1)]

    with_pair(scene, engine="sglang", time_scale=FAST)


def test_sglang_s_workers_refuse_requests_without_a_room(with_pair: Callable[..., None]) -> None:
    async def scene(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker) -> None:
        for worker in (prefill, decode):
            answer = await client.complete(worker, prompt=PROMPT)
            assert answer.status_code == 400
        async with emulated_worker(engine="sglang", role="aggregated", time_scale=FAST) as aggregated:
            answer = await client.complete(aggregated, prompt=PROMPT, max_tokens=3)
            assert answer.json()["choices"][0]["text"] == expected_text(PROMPT, 3)

    with_pair(scene, engine="sglang", time_scale=FAST)


def test_sglang_s_decode_worker_waits_for_a_prefill_that_never_comes(with_pair: Callable[..., None]) -> None:
    async def scene(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker) -> None:
        body = {"prompt": PROMPT, "rid": "mine", **room(prefill, 5)}
        answer = await client.complete(decode, **body)
        assert answer.status_code == 500
        waiting = asyncio.create_task(client.complete(decode, **body | {"bootstrap_room": 6}))
        await decode.wait_until(lambda: len(decode.ledger.pulls) == 2)
        await client.http.post(decode.url + "/abort_request", json={"rid": "mine"})
        assert (await waiting).status_code == 500
        await decode.wait_until(lambda: decode.is_idle)

    with_pair(scene, engine="sglang", time_scale=FAST, kv_wait_s=20.0)


def test_sglang_s_prefill_worker_frees_memory_when_its_leg_is_closed(with_pair: Callable[..., None]) -> None:
    async def scene(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker) -> None:
        leg = asyncio.create_task(client.complete(prefill, prompt=PROMPT, **room(prefill, 9)))
        await prefill.wait_until(lambda: bool(prefill.ledger.open))
        leg.cancel()
        await prefill.wait_until(lambda: bool(prefill.ledger.ended("aborted")))
        assert prefill.engine.memory.used_share == 0.0

    with_pair(scene, engine="sglang", time_scale=FAST)


async def atom_parameters(client: Any, prefill: EmulatedWorker) -> dict[str, Any]:
    """What a router sends to ATOM's decode worker."""
    info = (await client.http.get(prefill.url + "/kv_transfer_info")).json()
    assert info["kv_role"] == "kv_producer"
    first = await client.complete(prefill, prompt=PROMPT, max_tokens=1, kv_transfer_params=PREFILLED)
    parameters: dict[str, Any] = first.json()["kv_transfer_params"]
    return parameters | {"remote_tp_size": info["tp_size"], "remote_dp_size": info["dp_size"], "remote_dp_rank": 0}


def test_atom_s_parameters_carry_the_first_token(with_pair: Callable[..., None]) -> None:
    async def scene(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker) -> None:
        parameters = await atom_parameters(client, prefill)
        assert [parameters["first_token_id"]] == tokenize(expected_text(PROMPT, 1))
        answer = await client.complete(decode, prompt=PROMPT, max_tokens=6, kv_transfer_params=parameters)
        choice = answer.json()["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == (expected_text(PROMPT, 6), "max_tokens")
        assert "kv_transfer_params" in answer.json()
        assert [lease.end for lease in prefill.ledger.leases] == ["pulled"]
        streamed = await client.stream(decode, prompt=PROMPT, max_tokens=6)
        assert streamed.chunks[-1]["usage"]["completion_tokens"] == 6

    with_pair(scene, engine="atom", time_scale=FAST)


def test_atom_s_prefill_worker_never_frees_what_nobody_fetches(with_pair: Callable[..., None]) -> None:
    async def scene(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker) -> None:
        plain = await client.complete(prefill, prompt=PROMPT, max_tokens=1)
        assert plain.json()["kv_transfer_params"] is None
        several = await client.complete(prefill, prompt=PROMPT, max_tokens=1, n=2, kv_transfer_params=PREFILLED)
        assert several.json()["kv_transfer_params"] is None
        assert len(prefill.ledger.open) == 3
        ledger = (await client.http.get(prefill.url + "/emulator/ledger")).json()
        assert [(lease["end"], lease["expires_s"]) for lease in ledger["leases"]] == [("open", None)] * 3
        assert prefill.engine.memory.used_share > 0.0
        batch = await client.complete(prefill, prompt=[PROMPT, PROMPT])
        assert batch.status_code == 400

    with_pair(scene, engine="atom", time_scale=FAST)


def test_the_sidecar_sends_the_legs_that_its_header_names(with_worker: Callable[..., None]) -> None:
    async def scene(client: Any, prefill: EmulatedWorker) -> None:
        async with emulated_worker(engine="sidecar", role="decode", time_scale=FAST, kv_lease_s=2_000.0) as decode:
            remote = {"x-prefiller-host-port": f"127.0.0.1:{prefill.port}", "authorization": "Bearer mine"}
            messages = [{"role": "user", "content": PROMPT}]
            body = {"messages": messages, "max_completion_tokens": 7, "stream_options": {"include_usage": True}}
            answer = await client.complete(decode, headers=remote, stream=True, **body)
            assert answer.status_code == 200
            assert [lease.end for lease in prefill.ledger.leases] == ["pulled"]
            leg = prefill.requests[0]
            assert leg.headers["authorization"] == "Bearer mine"
            assert (leg.json["max_completion_tokens"], leg.json["stream"]) == (1, False)
            local = await client.complete(decode, prompt=PROMPT, max_tokens=2)
            assert local.json()["choices"][0]["text"] == expected_text(PROMPT, 2)
            assert len(prefill.requests) == 1
            prefill.faults.set("429")
            refused = await client.complete(decode, prompt=PROMPT, headers=remote)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, 429)
            prefill.faults.set("refuse")
            assert (await client.complete(decode, prompt=PROMPT, headers=remote)).status_code == 502

    with_worker(scene, role="prefill", time_scale=FAST, kv_lease_s=2_000.0)


def test_lmcache_s_prefill_worker_pushes_and_notifies(with_worker: Callable[..., None]) -> None:
    async def scene(client: Any, decode: EmulatedWorker) -> None:
        context = zmq.asyncio.Context()
        notices = context.socket(zmq.PULL)
        port = notices.bind_to_random_port("tcp://127.0.0.1")
        options: dict[str, Any] = {"engine": "vllm-lmcache", "role": "prefill", "time_scale": FAST}
        connector = decode.engine.connector
        assert isinstance(connector, LmcacheConnector)
        try:
            async with emulated_worker(**options, notice_endpoint=f"tcp://127.0.0.1:{port}") as prefill:
                ports = [connector.receive_port]
                destination = {"receiver_host": "127.0.0.1", "receiver_init_port": ports, "receiver_alloc_port": ports}
                parameters = {"disagg_spec": destination | {"req_id": "42"}}
                await client.complete(prefill, prompt=PROMPT, max_tokens=1, kv_transfer_params=parameters)
                notice = msgspec.msgpack.decode(await asyncio.wait_for(notices.recv(), 20.0))
                assert notice == {"type": "ProxyNotif", "req_id": "42"}
                await decode.wait_until(lambda: bool(decode.ledger.open))
                answer = await client.complete(decode, prompt=PROMPT, max_tokens=8)
                assert answer.json()["choices"][0]["text"] == expected_text(PROMPT, 8)
                assert [lease.end for lease in decode.ledger.leases] == ["pulled"]
                assert [pull.end for pull in decode.ledger.pulls] == ["loaded"]
                assert prefill.engine.memory.used_share == decode.engine.memory.used_share == 0.0
                local = await client.complete(decode, prompt=PROMPT, max_tokens=8)
                assert local.json()["choices"][0]["text"] == expected_text(PROMPT, 8)
                refused = await client.complete(prefill, prompt=PROMPT, kv_transfer_params={"disagg_spec": {"a": 1}})
                assert refused.status_code == 400
        finally:
            context.destroy(linger=0)

    with_worker(scene, engine="vllm-lmcache", role="decode", time_scale=FAST)
