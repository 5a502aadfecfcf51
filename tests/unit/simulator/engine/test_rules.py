"""The rules of deployed routers, case by case, as their sources have them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dolphin_router.contract import Split
from dolphin_sim.hardware import load_profile
from dolphin_sim.policy import dynamo_default, dynamo_isl_bounding
from dolphin_sim.rules.dynamo import choose_cheapest, is_bypassed_by_length, is_prefill_busy
from dolphin_sim.rules.length import is_remote_by_llm_d
from dolphin_sim.simulation import Cluster, simulate
from dolphin_sim.workloads import Requests, workload_by_name


@pytest.mark.parametrize(
    ("prompt", "cached", "local"),
    [
        (198, 0, False),
        (198, 192, True),
        (8_088, 0, False),
        (4_000, 0, False),
        (4_000, 3_968, True),
        (1_000, 896, True),
        (2_920, 896, True),
        (6_826, 4_779, True),
        (6_826, 4_778, False),
        (19_019, 15_168, False),
        (100_000, 64_000, False),
        (500, 640, True),
        (0, 0, True),
    ],
)
def test_isl_bounding_with_its_defaults(prompt: int, cached: int, local: bool) -> None:
    rule = getattr(is_bypassed_by_length, "py_func", is_bypassed_by_length)
    assert rule(prompt, cached, 2_048.0, 0.7) is local


def test_a_prefill_worker_is_busy_above_its_threshold_only() -> None:
    rule = getattr(is_prefill_busy, "py_func", is_prefill_busy)
    assert not rule(8_192, 1.0, 8_192)
    assert rule(8_193, 1.0, 8_192)


@pytest.mark.parametrize(
    ("prompt", "cached", "threshold", "remote"),
    [(8_000, 0, 0, False), (15, 0, 16, False), (16, 0, 16, True), (8_000, 7_990, 16, False), (8_000, 7_984, 16, True)],
)
def test_llm_d_with_exact_counts(prompt: int, cached: int, threshold: int, remote: bool) -> None:
    rule = getattr(is_remote_by_llm_d, "py_func", is_remote_by_llm_d)
    assert rule(prompt, cached, threshold) is remote


class TestDynamosChoiceOfWorkers:
    @pytest.mark.parametrize(
        ("load", "cached", "chosen"),
        [
            ([0, 640], [0, 0], 0),
            ([640, 0], [0, 0], 1),
            # 10 blocks of backlog against 11 blocks of prefix.
            ([640, 0], [704, 0], 0),
            ([640, 0], [576, 0], 1),
            # A prefix counts in whole blocks: 127 tokens are one.
            ([0, 64], [0, 127], 0),
            ([0, 63], [0, 127], 1),
            # No cost is below 0: a prefix beyond the prompt is worth no more than one as long as it.
            ([0, 64], [6_400, 6_400], 0),
        ],
    )
    def test_the_lowest_cost_wins(self, load: list[int], cached: list[int], chosen: int) -> None:
        # Where costs are equal the draw of 0 takes the first.
        assert cheapest(load, 640, cached, uniform=0.0) == chosen

    def test_equal_costs_are_broken_by_the_draw(self) -> None:
        loads = [64, 0, 640, 0, 0]
        chosen = [cheapest(loads, 640, [0] * 5, uniform=uniform) for uniform in (0.0, 0.33, 0.34, 0.66, 0.67, 0.99)]
        assert chosen == [1, 1, 3, 3, 4, 4]

    def test_ties_fall_by_the_seed(self, prompts: Callable[..., Requests]) -> None:
        requests = prompts([640] * 64, [100.0 * number for number in range(64)])
        cluster = Cluster(load_profile("h20x4-72b"), Split(prefill=2, decode=2))
        once, again, other = (
            simulate(cluster, requests, dynamo_default(), seed=seed).prefill_worker.tolist() for seed in (1, 1, 2)
        )
        assert once == again
        assert once != other
        assert 16 < sum(once) < 48

    def test_the_prefix_on_decode_workers_counts_with_conditional_disaggregation_only(self) -> None:
        # Questions on shared documents: with the credit they go where the document lies.
        requests = workload_by_name("leval").episode(rate_per_s=0.3, duration_s=600.0, seed=2, part="train")
        cluster = Cluster(load_profile("h20x4-72b"), Split(prefill=2, decode=2))
        with_credit = simulate(cluster, requests, dynamo_isl_bounding(0.0, 0.0), seed=1)
        without = simulate(cluster, requests, dynamo_default(), seed=1)
        # Thresholds of 0 send everything remote, so that only the choice of workers differs.
        assert with_credit.path.all()
        assert with_credit.decode_cached_tokens.sum() > 1.1 * without.decode_cached_tokens.sum()


def cheapest(load: list[int], prompt_tokens: int, cached: list[int], *, uniform: float) -> int:
    rule = getattr(choose_cheapest, "py_func", choose_cheapest)
    chosen: int = rule(np.array(load, float), prompt_tokens, np.array(cached, float), 64, len(load), uniform)
    return chosen
