"""KV transfers: when each of several ends, worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dolphin_router.contract import Split
from dolphin_sim.engine.step_time import decode_attention_s, prefill_s
from dolphin_sim.hardware import load_profile
from dolphin_sim.hardware.law import engine_settings
from dolphin_sim.policy import always_remote
from dolphin_sim.simulation import Cluster, simulate
from dolphin_sim.workloads import Requests

Ends = Callable[[str, list[float]], list[float]]

# 8,000 tokens are 2.62144 s at 10⁹ bytes a second.
PROFILE = load_profile("h20x4-72b").replaced(link_gb_per_s=1.0, transfer_overhead_ms=10.0)
ALONE_S = 2.62144


@pytest.fixture
def ends_s(prompts: Callable[..., Requests]) -> Ends:
    """When each transfer of 8,000 tokens ends, for a split and the times at which they start; 0 is the first's."""

    def run(split: str, starts_s: list[float]) -> list[float]:
        cluster = Cluster(PROFILE, Split.parse(split))
        settings = engine_settings(PROFILE, cluster.split, block_tokens=64)
        prefill_and_overhead_s = prefill_s(settings, 8_000, 0, PROFILE.prefill_step_tokens) + 0.010
        decode_step_s = settings.step_s[1] + decode_attention_s(settings, 1, 8_000.0)
        outcomes = simulate(cluster, prompts([8_000] * len(starts_s), starts_s), always_remote())
        ends: list[float] = (outcomes.first_token_s - decode_step_s - prefill_and_overhead_s).tolist()
        return ends

    return run


def test_a_transfer_alone_has_the_whole_link(ends_s: Ends) -> None:
    assert ends_s("1P1D", [0.0]) == pytest.approx([ALONE_S])


def test_two_transfers_into_one_worker_share_its_link(ends_s: Ends) -> None:
    # The first is alone for 1 s. Then both get half until the first ends, and the second ends when all is moved.
    assert ends_s("2P1D", [0.0, 1.0]) == pytest.approx([2 * ALONE_S - 1.0, 2 * ALONE_S])


def test_two_transfers_between_other_workers_do_not_share(ends_s: Ends) -> None:
    assert ends_s("2P2D", [0.0, 1.0]) == pytest.approx([ALONE_S, 1.0 + ALONE_S])


def test_two_transfers_out_of_one_worker_share_its_link(ends_s: Ends) -> None:
    # One prefill worker computes one prompt after the other, so the second transfer starts a prefill later.
    cluster = Cluster(PROFILE, Split(prefill=1, decode=2))
    settings = engine_settings(PROFILE, cluster.split, block_tokens=64)
    later_s = prefill_s(settings, 8_000, 0, PROFILE.prefill_step_tokens)
    assert later_s < ALONE_S
    assert ends_s("1P2D", [0.0, 0.0]) == pytest.approx([2 * ALONE_S - later_s, 2 * ALONE_S])


def test_three_transfers_into_one_worker(ends_s: Ends) -> None:
    # Seconds of the whole link that each has had: at 1 s (1, 0, 0), at 2 s (1.5, 0.5, 0); then a third each until the
    # first has its 2.62144 at 5.36432 s; then (-, 1.62144, 1.12144), half each: the second needs 2 s more.
    assert ends_s("3P1D", [0.0, 1.0, 2.0]) == pytest.approx([5.36432, 7.36432, 3 * ALONE_S])
