"""One request alone takes what the closed form says."""

from __future__ import annotations

import numpy as np
import pytest

from dolphin_router.contract import Split
from dolphin_sim.engine.step_time import attention_pairs, decode_attention_s, prefill_s
from dolphin_sim.hardware import load_profile
from dolphin_sim.hardware.law import engine_settings
from dolphin_sim.policy import always_local, always_remote
from dolphin_sim.simulation import Cluster, simulate
from dolphin_sim.workloads import Requests

PROFILE = load_profile("h20x4-72b")
CLUSTER = Cluster(PROFILE, Split(prefill=1, decode=1))
SETTINGS = engine_settings(PROFILE, CLUSTER.split, block_tokens=64)


def requests(prompts: list[int], outputs: list[int], arrivals: list[float], documents: list[int]) -> Requests:
    """Prompts of which those with the same document share all full blocks."""
    blocks = [np.arange(prompt // 64) + 100_000 * document for prompt, document in zip(prompts, documents, strict=True)]
    return Requests.without_inputs(
        arrival_s=np.array(arrivals),
        prompt_tokens=np.array(prompts),
        output_tokens=np.array(outputs),
        block_offsets=np.concatenate([[0], np.cumsum([len(part) for part in blocks])]).astype(np.int64),
        block_ids=np.concatenate(blocks).astype(np.int64),
        block_tokens=64,
        component_name="one",
    )


# latency-law check values for 4 x H20, in milliseconds: prompt tokens, cached tokens, seconds of prefill in one step or
# chunks of 8,192
@pytest.mark.parametrize(
    ("new", "cached", "expected_ms"),
    [(198, 0, 61), (2_000, 0, 556), (8_088, 0, 2_313), (19_019, 0, 5_941), (3_800, 15_219, 1_342)],
)
def test_prefill_takes_what_the_closed_form_says(new: int, cached: int, expected_ms: float) -> None:
    assert 1e3 * prefill_s(SETTINGS, new, cached, 8_192) == pytest.approx(expected_ms, rel=0.02)


@pytest.mark.parametrize(
    ("decodes", "at_2k_ms", "at_8k_ms"),
    [(1, 16.5, 16.7), (8, 16.9, 18.1), (32, 18.1, 23.1), (64, 29.9, 39.8), (128, 49.3, 69.2)],
)
def test_decode_step_takes_what_the_closed_form_says(decodes: int, at_2k_ms: float, at_8k_ms: float) -> None:
    for context, expected_ms in ((2_048, at_2k_ms), (8_192, at_8k_ms)):
        seconds = SETTINGS.step_s[decodes] + decode_attention_s(SETTINGS, decodes, float(decodes * context))
        assert 1e3 * seconds == pytest.approx(expected_ms, rel=0.01)


@pytest.mark.parametrize(("chunk", "expected_ms"), [(256, 93), (512, 162), (1_024, 303), (2_048, 586), (4_096, 1_161)])
def test_mixed_step_takes_what_the_closed_form_says(chunk: int, expected_ms: float) -> None:
    seconds = (
        SETTINGS.step_s[chunk + 32]
        + decode_attention_s(SETTINGS, 32, 32 * 8_192.0)
        + SETTINGS.attention_s_per_pair * attention_pairs(float(chunk), 0.0)
    )
    assert 1e3 * seconds == pytest.approx(expected_ms, rel=0.01)


def test_a_local_request_alone_waits_for_its_own_prefill() -> None:
    outcome = simulate(CLUSTER, requests([2_000], [1], [0.0], [1]), always_local())
    assert outcome.ttft_ms[0] == pytest.approx(1e3 * prefill_s(SETTINGS, 2_000, 0, PROFILE.decode_step_tokens))
    assert outcome.finish_s[0] == outcome.first_token_s[0]


def test_a_remote_request_alone_waits_for_prefill_transfer_and_one_decode_step() -> None:
    outcome = simulate(CLUSTER, requests([8_000], [1], [0.0], [1]), always_remote())
    transfer_s = PROFILE.transfer_overhead_ms / 1e3 + 8_000 * PROFILE.kv_bytes_per_token / (PROFILE.link_gb_per_s * 1e9)
    step_s = SETTINGS.step_s[1] + decode_attention_s(SETTINGS, 1, 8_000.0)
    expected_s = prefill_s(SETTINGS, 8_000, 0, PROFILE.prefill_step_tokens) + transfer_s + step_s
    assert outcome.ttft_ms[0] == pytest.approx(1e3 * expected_s)


def test_two_transfers_share_the_link() -> None:
    two = Cluster(PROFILE.replaced(link_gb_per_s=1.0), Split(prefill=2, decode=1))
    outcome = simulate(two, requests([8_000, 8_000], [1, 1], [0.0, 0.0], [1, 2]), always_remote())
    alone_s = 8_000 * PROFILE.kv_bytes_per_token / 1e9
    earliest_s = prefill_s(SETTINGS, 8_000, 0, 8_192) + PROFILE.transfer_overhead_ms / 1e3 + 2 * alone_s
    assert np.all(outcome.first_token_s > earliest_s)
    assert np.all(outcome.first_token_s < earliest_s + 0.1)


def test_the_cache_is_looked_up_when_a_prefill_is_scheduled() -> None:
    # Both arrive while nothing is cached; the second is computed after the first and finds its blocks.
    outcome = simulate(CLUSTER, requests([8_192, 8_192], [1, 1], [0.0, 0.0], [1, 1]), always_remote())
    assert outcome.prefill_cached_tokens.tolist() == [0, 0]
    # At least the last token is computed.
    assert outcome.reused_tokens.tolist() == [0, 8_191]


def test_a_transferred_prompt_is_cached_on_the_decode_worker() -> None:
    outcome = simulate(CLUSTER, requests([8_192, 8_192], [1, 1], [0.0, 60.0], [1, 1]), always_remote())
    assert outcome.decode_cached_tokens.tolist() == [0, 8_192]
    assert outcome.shipped_tokens.tolist() == [8_192, 1]


def test_a_local_prefill_slows_the_decodes_beside_it() -> None:
    decoders = [64] * 8
    alone = simulate(CLUSTER, requests(decoders, [200] * 8, [0.0] * 8, list(range(8))), always_local())
    beside = simulate(
        CLUSTER, requests([*decoders, 16_384], [200] * 8 + [1], [0.0] * 8 + [1.0], list(range(9))), always_local()
    )
    added_s = beside.finish_s[:8].mean() - alone.finish_s[:8].mean()
    assert added_s == pytest.approx(prefill_s(SETTINGS, 16_384, 0, PROFILE.decode_step_tokens), rel=0.1)


@pytest.mark.parametrize(("load", "count", "seed"), [(0.5, 150_000, 5), (0.7, 150_000, 7)])
def test_waiting_follows_the_formula_for_one_server_with_constant_service(load: float, count: int, seed: int) -> None:
    # Prompts that fill one step each, all different: M/D/1.
    service_s = prefill_s(SETTINGS, 8_192, 0, 8_192)
    arrival_s = np.cumsum(np.random.default_rng(seed).exponential(service_s / load, count))
    blocks = 8_192 // 64
    prompts = Requests.without_inputs(
        arrival_s=arrival_s,
        prompt_tokens=np.full(count, 8_192),
        output_tokens=np.ones(count, dtype=np.int64),
        block_offsets=np.arange(count + 1) * blocks,
        block_ids=np.arange(count * blocks),
        block_tokens=64,
        component_name="one",
    )
    outcome = simulate(CLUSTER, prompts, always_remote())
    transfer_s = PROFILE.transfer_overhead_ms / 1e3 + 8_192 * PROFILE.kv_bytes_per_token / (PROFILE.link_gb_per_s * 1e9)
    decode_step_s = SETTINGS.step_s[1] + decode_attention_s(SETTINGS, 1, 8_192.0)
    waited_s = outcome.first_token_s - outcome.arrival_s - service_s - transfer_s - decode_step_s
    # Each request by itself (Lindley's recursion): all that its predecessors left undone when it came.
    progress_s = np.concatenate([np.zeros(1), np.cumsum(service_s - np.diff(arrival_s))])
    assert waited_s == pytest.approx(progress_s - np.minimum.accumulate(progress_s), abs=1e-6)
    # The mean (Pollaczek and Khinchine), up to the luck of these arrivals: the simulator adds no bias of its own.
    assert waited_s.mean() == pytest.approx(service_s * load / (2 * (1 - load)), rel=0.03)
