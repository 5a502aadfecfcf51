"""Times and choices of a few requests together, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dolphin_router import features
from dolphin_router.contract import Split
from dolphin_sim import policy
from dolphin_sim.engine import routing
from dolphin_sim.engine.step_time import attention_pairs, decode_attention_s, prefill_s
from dolphin_sim.hardware import HardwareProfile, load_profile
from dolphin_sim.hardware.law import engine_settings
from dolphin_sim.outcomes import Outcomes
from dolphin_sim.policy import Policy, always_local, always_remote
from dolphin_sim.simulation import Cluster, Simulation, simulate
from dolphin_sim.workloads import Requests

ONE_EACH = Split(prefill=1, decode=1)
H20 = load_profile("h20x4-72b")
SETTINGS = engine_settings(H20, ONE_EACH, block_tokens=64)
OVERHEAD_S = H20.transfer_overhead_ms / 1e3


def make_requests(
    prompts: list[int], outputs: list[int], arrivals_s: list[float], documents: list[int] | None = None
) -> Requests:
    """Those with the same document share all full blocks of 64 tokens; without documents each has its own."""
    beginnings = range(len(prompts)) if documents is None else documents
    blocks = [
        np.arange(prompt // 64) + 100_000 * document for prompt, document in zip(prompts, beginnings, strict=True)
    ]
    return Requests.without_inputs(
        arrival_s=np.array(arrivals_s),
        prompt_tokens=np.array(prompts),
        output_tokens=np.array(outputs),
        block_offsets=np.cumsum([0, *map(len, blocks)], dtype=np.int64),
        block_ids=np.concatenate(blocks).astype(np.int64),
        block_tokens=64,
        component_name="by hand",
    ).check()


def decode_step_s(*contexts: int) -> float:
    return float(SETTINGS.step_s[len(contexts)]) + decode_attention_s(SETTINGS, len(contexts), float(sum(contexts)))


def test_time_per_output_token_is_the_mean_decode_step_over_a_growing_context() -> None:
    outcome = simulate(Cluster(H20, ONE_EACH), make_requests([4_000], [301], [0.0]), always_local())
    steps_s = [decode_step_s(4_000 + generated) for generated in range(1, 301)]
    assert outcome.tpot_ms[0] == pytest.approx(1e3 * np.mean(steps_s), rel=1e-9)


def test_each_chunk_of_a_local_prefill_takes_one_step_of_32_decodes() -> None:
    # All 32 are decoding when a prompt of exactly two chunks comes; a chunk is what 32 decodes leave of the budget.
    chunk = H20.decode_step_tokens - 32
    decoders = make_requests([8_192] * 32, [2_000] * 32, [0.0] * 32)
    together = make_requests([8_192] * 32 + [2 * chunk], [2_000] * 32 + [1], [0.0] * 32 + [90.0])
    alone = simulate(Cluster(H20, ONE_EACH), decoders, always_local())
    beside = simulate(Cluster(H20, ONE_EACH), together, always_local())
    one_decode_step_s = float(SETTINGS.step_s[32])
    added_s = 2 * (float(SETTINGS.step_s[32 + chunk]) - one_decode_step_s) + SETTINGS.attention_s_per_pair * (
        attention_pairs(float(chunk), 0.0) + attention_pairs(float(chunk), float(chunk))
    )
    assert np.all(alone.first_token_s < 90.0)
    assert np.all(alone.finish_s > 100.0)
    assert beside.finish_s[:32] - alone.finish_s == pytest.approx(np.full(32, added_s), rel=1e-6)
    # It waits for the end of the running step, and both its chunks carry the decodes along.
    prefill_with_decodes_s = added_s + 2 * decode_step_s(*[9_192] * 32)
    assert prefill_with_decodes_s * 0.98 < beside.ttft_ms[32] / 1e3 < prefill_with_decodes_s * 1.02 + 0.03


def test_what_the_host_tier_kept_is_read_back_instead_of_computed() -> None:
    # Memory for one prompt of 8,192 tokens: the second pushes the first out.
    prompts = make_requests([8_192] * 3, [1] * 3, [0.0, 20.0, 40.0], [1, 2, 1])

    def third(profile: HardwareProfile) -> Outcomes:
        outcome = simulate(Cluster(profile, ONE_EACH), prompts, always_local())
        return outcome.select(np.array([False, False, True]))

    without = third(H20.replaced(kv_capacity_tokens=9_000))
    kept = third(H20.replaced(kv_capacity_tokens=9_000, host_tier_tokens=64_000))
    assert without.reused_tokens[0] < 8_192 // 2
    assert kept.reused_tokens[0] == 8_191
    one_token_s = float(SETTINGS.step_s[1]) + SETTINGS.attention_s_per_pair * attention_pairs(1.0, 8_191.0)
    read_s = 8_192 * H20.kv_bytes_per_token / (H20.host_gb_per_s * 1e9)
    # Some of the first prompt may still be in GPU memory, which saves reading it.
    assert one_token_s < kept.ttft_ms[0] / 1e3 <= one_token_s + read_s + 1e-9


def test_a_first_token_is_not_reported_before_it_came() -> None:
    simulation = Simulation(Cluster(H20, ONE_EACH), always_remote(), block_tokens=64)
    simulation.offer(make_requests([64], [2], [0.0]))
    kv_arrives_s = prefill_s(SETTINGS, 64, 0, 8_192) + OVERHEAD_S + 64 * H20.kv_bytes_per_token / 39e9
    simulation.advance(kv_arrives_s + decode_step_s(64) / 2)
    assert simulation.outcomes().first_token_s[0] == np.inf
    simulation.advance(kv_arrives_s + decode_step_s(64) + 1e-9)
    outcome = simulation.outcomes()
    assert outcome.first_token_s[0] == pytest.approx(kv_arrives_s + decode_step_s(64))
    assert not outcome.is_finished[0]


def test_requests_of_the_past_and_other_block_sizes_are_refused() -> None:
    simulation = Simulation(Cluster(H20, ONE_EACH), always_local(), block_tokens=64)
    simulation.offer(make_requests([64], [1], [5.0]))
    with pytest.raises(ValueError, match=r"4\.000 s, before 5\.000 s"):
        simulation.offer(make_requests([64], [1], [4.0]))
    with pytest.raises(ValueError, match="blocks of 64 tokens, the cluster of 16"):
        Simulation(Cluster(H20, ONE_EACH), always_local(), block_tokens=16).offer(make_requests([64], [1], [5.0]))


@pytest.mark.parametrize(
    ("rule", "paths"),
    [
        (policy.dynamo_isl_bounding(), [1, 1, 0, 1]),
        (policy.by_length(1_000), [1, 0, 1, 1]),
        (policy.by_effective_length(1_000), [1, 0, 0, 1]),
        (policy.llm_d(512), [1, 0, 0, 1]),
        (policy.llm_d(0), [0, 0, 0, 0]),
        (policy.random_path(0.0), [0, 0, 0, 0]),
        (policy.random_path(1.0), [1, 1, 1, 1]),
        # Nothing waits anywhere, and the transfer costs more than nothing.
        (policy.by_cost(0.0), [0, 0, 0, 0]),
        # Eight long answers are being decoded, which nothing may disturb.
        (policy.by_cost(1e6), [1, 1, 1, 1]),
    ],
    ids=lambda value: value.describe() if isinstance(value, Policy) else "",
)
def test_each_rule_reads_the_numbers_it_names(rule: Policy, paths: list[int]) -> None:
    # A cold long prompt, a cold short one, one that is cached but for its last 32 tokens, another cold long one.
    decoders = make_requests([64] * 8, [20_000] * 8, [0.0] * 8, list(range(10, 18)))
    probes = make_requests([4_000, 198, 4_000, 8_088], [1] * 4, [20.0, 40.0, 60.0, 80.0], [1, 2, 1, 3])
    simulation = Simulation(Cluster(H20, ONE_EACH), always_local(), block_tokens=64)
    simulation.offer(decoders)
    simulation.advance(10.0)
    simulation.policy = rule
    simulation.offer(probes)
    simulation.advance(100.0)
    assert simulation.outcomes().path[8:].tolist() == paths


def test_requests_go_where_their_prefix_is() -> None:
    # The second prompt is sent to the other workers, as the first pair is busy; the third is the second's again.
    requests = make_requests([8_000] * 3, [2_000, 20, 20], [0.0, 0.1, 20.0], [1, 2, 2])
    outcome = simulate(Cluster(H20, Split(prefill=2, decode=2)), requests, always_remote())
    assert outcome.prefill_worker.tolist() == [0, 1, 1]
    assert outcome.decode_worker.tolist() == [2, 3, 3]
    assert outcome.prefill_cached_tokens.tolist() == [0, 0, 8_000]


def test_the_simulator_computes_features_with_the_router_s_code() -> None:
    for compiled, plain in (
        (routing.standardise, features.standardise),
        (routing.effective_tokens, features.effective_tokens),
    ):
        assert getattr(compiled, "py_func", compiled) is plain
