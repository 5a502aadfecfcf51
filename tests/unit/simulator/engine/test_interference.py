"""How much a local prefill disturbs the decodes beside it, against estimates that others made."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dolphin_router.contract import Split
from dolphin_sim.engine.step_time import attention_pairs, decode_attention_s, prefill_s
from dolphin_sim.hardware import load_profile
from dolphin_sim.hardware.law import engine_settings
from dolphin_sim.policy import always_local
from dolphin_sim.simulation import Cluster, Simulation
from dolphin_sim.workloads import Requests

PROFILE = load_profile("h20x4-72b")
ONE_OF_EACH = Split(prefill=1, decode=1)
SETTINGS = engine_settings(PROFILE, ONE_OF_EACH, block_tokens=64)

# Milliseconds of a step with 32 decodes at a context of 8,192 and a prefill chunk: by aiconfigurator's method carried
# over to H20, and by the kernel tables of alibaba/InferSim.
MIXED_STEP_MS = {256: (97, 95), 512: (176, 164), 1024: (333, 306), 2048: (648, 589), 4096: (1272, 1163)}


@pytest.mark.parametrize("chunk", MIXED_STEP_MS)
def test_mixed_steps_agree_with_two_independent_estimates(chunk: int) -> None:
    seconds = (
        SETTINGS.step_s[chunk + 32]
        + decode_attention_s(SETTINGS, 32, 32 * 8192)
        + SETTINGS.attention_s_per_pair * attention_pairs(float(chunk), 0.0)
    )
    by_method_ms, by_kernels_ms = MIXED_STEP_MS[chunk]
    assert 1e3 * seconds == pytest.approx(by_method_ms, rel=0.11)
    assert 1e3 * seconds == pytest.approx(by_kernels_ms, rel=0.03)


@pytest.mark.parametrize(("chunk", "slowdown"), [(256, 4), (512, 7), (1024, 13)])
def test_decodes_beside_a_chunk_are_slowed_by_the_factor_of_the_law(
    prompts: Callable[..., Requests], chunk: int, slowdown: float
) -> None:
    # 32 prompts of 8,192 tokens, one after the other; then all decode, and a short prompt joins them.
    joins_s = 90.0
    requests = prompts([8192] * 32 + [chunk], [0.0] * 32 + [joins_s], output_tokens=[4000] * 32 + [1])
    simulation = Simulation(Cluster(PROFILE, ONE_OF_EACH), always_local(), block_tokens=64)
    simulation.offer(requests)
    simulation.advance(joins_s - 1e-6)
    decoder = simulation.engine.workers[1]
    assert decoder.running_count == 32
    alone_s = SETTINGS.step_s[32] + decode_attention_s(SETTINGS, 32, int(decoder.context_tokens))
    simulation.advance()
    # The chunk waits for the end of the decode step that runs, then shares the next one with the decodes.
    mixed_and_wait_s = simulation.outcomes().ttft_ms[32] / 1e3
    assert 0.95 * slowdown < mixed_and_wait_s / alone_s < 1.05 * slowdown + 1.0


def test_the_disturbance_grows_with_the_chunk_and_costs_what_the_prefill_costs(
    prompts: Callable[..., Requests],
) -> None:
    cluster = Cluster(PROFILE, ONE_OF_EACH)

    def finish_s(joining_tokens: list[int]) -> float:
        requests = prompts(
            [64] * 32 + joining_tokens,
            [0.0] * 32 + [2.0] * len(joining_tokens),
            output_tokens=[500] * 32 + [1] * len(joining_tokens),
        )
        simulation = Simulation(cluster, always_local(), block_tokens=64)
        simulation.offer(requests)
        simulation.advance()
        return float(np.max(simulation.outcomes().finish_s[:32]))

    delays_s = [finish_s([tokens]) - finish_s([]) for tokens in (512, 2048, 8192)]
    alone_s = [prefill_s(SETTINGS, tokens, 0, PROFILE.decode_step_tokens) for tokens in (512, 2048, 8192)]
    assert delays_s == sorted(delays_s)
    # The decodes go on in the mixed steps, so a chunk delays them by a step less than it takes alone.
    for delay_s, own_s, steps in zip(delays_s, alone_s, (1, 1, 5), strict=True):
        assert delay_s < own_s
        assert delay_s == pytest.approx(own_s, abs=0.017 * steps)
