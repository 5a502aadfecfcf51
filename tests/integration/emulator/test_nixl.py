"""A KV cache goes from a prefill to a decode worker of vLLM, once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dolphin_sim.emulator import EmulatedWorker, emulated_worker, expected_text
from dolphin_sim.hardware import load_profile

FAST = 200.0
PROMPT = "The quick brown fox jumps over the lazy dog. " * 20
# Long enough for a busy machine, short enough to wait for: simulated seconds at FAST.
SHORT_LEASE_S = 20.0
LONG_LEASE_S = 2_000.0


def test_remote_and_local_answers_are_the_same(with_pair: Callable[..., None]) -> None:
    async def scene(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker) -> None:
        body = {"prompt": PROMPT, "max_tokens": 40, "ignore_eos": True}
        parameters = await client.prefill(prefill, PROMPT)
        remote = await client.stream(decode, **body, kv_transfer_params=parameters)
        local = await client.complete(decode, **body)
        assert remote.text() == local.json()["choices"][0]["text"] == expected_text(PROMPT, 40)
        assert remote.is_done
        assert [lease.end for lease in prefill.ledger.leases] == ["pulled"]
        assert [pull.end for pull in decode.ledger.pulls] == ["loaded"]
        assert not prefill.ledger.errors
        assert not decode.ledger.errors
        assert prefill.engine.memory.used_share == decode.engine.memory.used_share == 0.0

    with_pair(scene, time_scale=FAST, kv_lease_s=LONG_LEASE_S)


@pytest.mark.parametrize("old", [False, True])
def test_parameters_have_the_members_of_their_version(with_pair: Callable[..., None], old: bool) -> None:
    seven = {
        "do_remote_prefill",
        "do_remote_decode",
        "remote_block_ids",
        "remote_engine_id",
        "remote_host",
        "remote_port",
        "tp_size",
    }
    newer = {
        "remote_request_id",
        "dcp_size",
        "pp_size",
        "remote_num_tokens",
        "remote_blocks_expiry_time",
        "remote_registration_generation",
        "transfer_mode",
        "remote_prefill_cached_tokens",
    }

    async def scene(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker) -> None:
        same_id = {"x-request-id": "one"}
        parameters = await client.prefill(prefill, PROMPT, headers=same_id)
        assert set(parameters) == (seven if old else seven | newer)
        blocks = parameters["remote_block_ids"]
        assert len(blocks if old else blocks[0]) == -(-len(PROMPT) // 4 // 16)
        answer = await client.complete(
            decode, prompt=PROMPT, max_tokens=2, kv_transfer_params=parameters, headers=same_id
        )
        assert answer.status_code == 200
        assert prefill.ledger.ended("pulled")

    with_pair(scene, time_scale=FAST, kv_lease_s=LONG_LEASE_S, old_parameters=old)


def test_the_old_version_knows_a_kv_cache_by_the_request_s_id(with_pair: Callable[..., None]) -> None:
    async def scene(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker) -> None:
        parameters = await client.prefill(prefill, PROMPT, headers={"x-request-id": "one"})
        answer = await client.complete(
            decode, prompt=PROMPT, kv_transfer_params=parameters, headers={"x-request-id": "two"}
        )
        assert answer.status_code == 500
        assert "this worker never had it" in prefill.ledger.errors[0]

    with_pair(scene, time_scale=FAST, kv_lease_s=LONG_LEASE_S, old_parameters=True)


def test_parameters_serve_once(with_pair: Callable[..., None]) -> None:
    async def scene(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker) -> None:
        parameters = await client.prefill(prefill, PROMPT)
        first = await client.complete(decode, prompt=PROMPT, kv_transfer_params=parameters)
        second = await client.complete(decode, prompt=PROMPT, kv_transfer_params=parameters)
        streamed = await client.stream(decode, prompt=PROMPT, kv_transfer_params=parameters)
        assert (first.status_code, second.status_code) == (200, 500)
        assert streamed.chunks[0]["error"]["code"] == 500
        assert len(prefill.ledger.errors) == 2
        assert "its lease ended: pulled" in prefill.ledger.errors[0]
        assert decode.is_idle

    with_pair(scene, time_scale=FAST, kv_lease_s=LONG_LEASE_S)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"remote_engine_id": "another"}, "asked for of engine another"),
        ({"remote_block_ids": [[1, 2, 3]]}, "not in [1, 2, 3]"),
        ({"remote_request_id": "unknown"}, "this worker never had it"),
    ],
)
def test_parameters_that_name_something_else_are_refused(
    with_pair: Callable[..., None], change: dict[str, Any], complaint: str
) -> None:
    async def scene(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker) -> None:
        parameters = await client.prefill(prefill, PROMPT)
        answer = await client.complete(decode, prompt=PROMPT, kv_transfer_params=parameters | change)
        assert answer.status_code == 500
        assert complaint in prefill.ledger.errors[0]
        assert complaint in decode.ledger.errors[0]
        assert prefill.ledger.open

    with_pair(scene, time_scale=FAST, kv_lease_s=LONG_LEASE_S)


def test_legs_with_different_prompts_are_noticed(with_pair: Callable[..., None]) -> None:
    async def scene(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker) -> None:
        parameters = await client.prefill(prefill, PROMPT)
        answer = await client.complete(decode, prompt=PROMPT + "!", kv_transfer_params=parameters)
        assert answer.status_code == 500
        assert "the two legs differ" in prefill.ledger.errors[0]

    with_pair(scene, time_scale=FAST, kv_lease_s=LONG_LEASE_S)


def test_a_prompt_below_a_block_is_not_handed_over(with_pair: Callable[..., None]) -> None:
    async def scene(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker) -> None:
        assert await client.prefill(prefill, "short") is None
        assert not prefill.ledger.leases
        assert prefill.engine.memory.used_share == 0.0

    with_pair(scene, time_scale=FAST)


def test_a_lease_that_nobody_claims_expires(with_pair: Callable[..., None]) -> None:
    async def scene(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker) -> None:
        parameters = await client.prefill(prefill, PROMPT)
        assert prefill.engine.memory.used_share > 0.0
        await prefill.wait_until(lambda: bool(prefill.ledger.expired))
        assert prefill.engine.memory.used_share == 0.0
        assert (
            b'vllm:nixl_num_kv_expired_reqs_total{engine="0",model_name="emulated"} 1.0'
            in prefill.engine.metrics.text()
        )
        late = await client.complete(decode, prompt=PROMPT, kv_transfer_params=parameters)
        assert late.status_code == 500
        assert "its lease ended: expired" in prefill.ledger.errors[0]

    with_pair(scene, time_scale=FAST, kv_lease_s=SHORT_LEASE_S)


def test_a_decode_worker_that_rejects_or_is_left_frees_the_prefill_worker_s_memory(
    with_pair: Callable[..., None],
) -> None:
    async def scene(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker) -> None:
        rejected = await client.prefill(prefill, PROMPT)
        answer = await client.complete(decode, prompt=PROMPT, max_tokens=10**6, kv_transfer_params=rejected)
        assert answer.status_code == 400
        await prefill.wait_until(lambda: len(prefill.ledger.ended("aborted")) == 1)
        left = await client.prefill(prefill, PROMPT)
        body = {"model": "emulated", "prompt": PROMPT, "stream": True, "kv_transfer_params": left}
        async with client.http.stream("POST", decode.url + "/v1/completions", json=body | {"max_tokens": 2_000}):
            pass
        await prefill.wait_until(lambda: not prefill.ledger.open)
        await decode.wait_until(lambda: decode.is_idle)
        assert prefill.engine.memory.used_share == decode.engine.memory.used_share == 0.0
        assert not prefill.ledger.expired

    # Steps of a decode then last longer than the client's leaving.
    with_pair(scene, time_scale=1.0)


def test_lost_kv_is_computed_again_where_the_policy_says_so(with_pair: Callable[..., None]) -> None:
    async def scene(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker) -> None:
        parameters = await client.prefill(prefill, PROMPT)
        prefill.engine.lender.end_all("dropped")
        answer = await client.complete(decode, prompt=PROMPT, max_tokens=3, kv_transfer_params=parameters)
        assert answer.json()["choices"][0]["text"] == expected_text(PROMPT, 3)

    with_pair(scene, time_scale=FAST, recompute_lost_kv=True)


def test_nothing_stays_whenever_a_client_leaves_the_decode_worker(with_pair: Callable[..., None]) -> None:
    async def scene(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker) -> None:
        async def leave_after(seconds: float, number: int) -> None:
            prompt = f"{number} {PROMPT}"
            parameters = await client.prefill(prefill, prompt)
            body = {"prompt": prompt, "max_tokens": 400, "ignore_eos": True, "kv_transfer_params": parameters}
            leg = asyncio.create_task(client.complete(decode, **body, stream=number % 2 == 0))
            if number % 3 < 2:
                wanted = ("open", "loaded")[number % 3]
                await decode.wait_until(lambda: (parameters["remote_request_id"], wanted) in asked_pulls(decode))
            else:
                await asyncio.wait({leg}, timeout=seconds)
            leg.cancel()

        await asyncio.gather(*(leave_after(number**2 / 10_000, number) for number in range(60)))
        await decode.wait_until(lambda: decode.is_idle)
        # A request that never reached the decode worker leaves its lease to expire.
        asked = {pull.key for pull in decode.ledger.pulls}
        await prefill.wait_until(lambda: all(lease.key not in asked for lease in prefill.ledger.open))
        assert decode.engine.memory.used_share == 0.0
        assert not decode.engine.runs
        prefill.engine.lender.end_all("expired")
        assert prefill.is_idle
        assert prefill.engine.memory.used_share == 0.0
        assert {"pulled", "aborted"} <= {lease.end for lease in prefill.ledger.leases}
        assert not prefill.ledger.errors
        assert not decode.ledger.errors

    def asked_pulls(decode: EmulatedWorker) -> set[tuple[str, str]]:
        return {(pull.key, pull.end) for pull in decode.ledger.pulls if pull.was_asked_for}

    # A transfer lasts 40 ms alone, and longer beside others.
    profile = load_profile("h20x4-72b").replaced(link_gb_per_s=0.1)
    with_pair(scene, profile=profile, time_scale=20.0, kv_lease_s=20_000.0)


@pytest.mark.parametrize("decode_workers", [1, 2])
def test_transfers_at_the_same_time_share_the_link(with_pair: Callable[..., None], decode_workers: int) -> None:
    # 1,000 tokens take 0.2 s alone.
    profile = load_profile("h20x4-72b").replaced(link_gb_per_s=1.6384, transfer_overhead_ms=0)
    prompts = [[number] * 1_000 for number in range(1, 4)]

    async def scene(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker) -> None:
        async with emulated_worker(role="decode", profile=profile) as other:

            async def fetch_s(worker: EmulatedWorker, prompt: list[int], parameters: Any) -> float:
                began_s = asyncio.get_running_loop().time()
                await client.complete(worker, prompt=prompt, max_tokens=1, kv_transfer_params=parameters)
                return asyncio.get_running_loop().time() - began_s

            first, *two = [await client.prefill(prefill, prompt) for prompt in prompts]
            alone_s = await fetch_s(decode, prompts[0], first)
            second = other if decode_workers == 2 else decode
            both_s = await asyncio.gather(fetch_s(decode, prompts[1], two[0]), fetch_s(second, prompts[2], two[1]))
            assert alone_s > 0.2
            assert 1.4 < max(both_s) / alone_s < 3.0

    with_pair(scene, profile=profile, time_scale=1.0)


def test_several_choices_share_one_kv_cache(with_pair: Callable[..., None]) -> None:
    async def scene(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker) -> None:
        parameters = await client.prefill(prefill, PROMPT)
        answer = await client.stream(decode, prompt=PROMPT, max_tokens=5, n=3, kv_transfer_params=parameters)
        assert [answer.text(choice) for choice in range(3)] == [
            expected_text(PROMPT, 5, choice=choice) for choice in range(3)
        ]
        assert [pull.end for pull in decode.ledger.pulls] == ["loaded"]

    with_pair(scene, time_scale=FAST, kv_lease_s=LONG_LEASE_S)
