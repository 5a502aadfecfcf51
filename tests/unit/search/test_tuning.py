"""Rules are tuned to the numbers that are best, and the best table is the best of all."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest

from dolphin_router.contract import Slo, Split
from dolphin_search.attainment import attainments
from dolphin_search.exhaustive import all_tables, exhaustive_best
from dolphin_search.preparation import PreparationSettings, prepare
from dolphin_search.tuning import grids, tuned_rules
from dolphin_sim.episode import Episode, Window, run_episode
from dolphin_sim.hardware import load_profile
from dolphin_sim.policy import with_actions
from dolphin_sim.problem import Problem
from dolphin_sim.simulation import Cluster
from dolphin_sim.workloads import Requests, workload_by_name

H20 = load_profile("h20x4-72b")


@pytest.mark.parametrize("rule", ["tuned-length", "tuned-effective-length"])
def test_a_threshold_is_tuned_to_the_only_one_that_keeps_every_promise(
    prompts: Callable[..., Requests], whole_episode: Callable[[Requests], Episode], rule: str
) -> None:
    # A transfer takes a second, which a short prompt's limit has no room for. A long prompt's has, and computed locally
    # it holds up the answer to the short one before it. So short ones have to stay and long ones to go.
    cluster = Cluster(H20.replaced(transfer_overhead_ms=1_000.0), Split(prefill=1, decode=1))
    slo = Slo(kind="both", ttft_ms=500.0, ttft_us_per_prompt_token=400.0, tpot_ms=20.0)
    pairs = 8
    requests = prompts(
        [128, 8_192] * pairs,
        [10.0 * number + offset for number in range(pairs) for offset in (0.0, 0.5)],
        output_tokens=[100, 1] * pairs,
    )
    episode = whole_episode(requests)
    steps: list[None] = []
    best = tuned_rules(cluster, slo, [episode], only={rule}, on_done=lambda: steps.append(None))[rule]
    assert run_episode(cluster, episode, best).is_met(slo).all()
    thresholds = [setting.parameters[0] for setting in grids()[rule]]
    assert best.parameters[0] == min(threshold for threshold in thresholds if threshold > 128)
    assert len(steps) == len(thresholds)
    kept = dict(
        zip(thresholds, attainments(cluster, slo, [episode], grids()[rule]).tolist(), strict=True),
    )
    assert all((share == 1.0) == (128 < threshold <= 8_192) for threshold, share in kept.items())


def test_every_rule_is_tuned_to_the_first_of_its_best_settings(
    whole_episode: Callable[[Requests], Episode],
) -> None:
    cluster = Cluster(H20, Split(prefill=2, decode=2))
    slo = Slo(kind="both", ttft_ms=4000.0, ttft_us_per_prompt_token=0.0, tpot_ms=20.0)
    requests = workload_by_name("hybrid").episode(rate_per_s=1.3, duration_s=120.0, seed=0, part="train")
    episode = whole_episode(requests)
    tuned = tuned_rules(cluster, slo, [episode])
    assert list(tuned) == list(grids())
    for name, settings in grids().items():
        shares = [run_episode(cluster, episode, setting).is_met(slo).mean() for setting in settings]
        assert tuned[name].parameters == settings[int(np.argmax(shares))].parameters
        assert tuned[name].name == name


@pytest.mark.parametrize("cores", [1, 2])
def test_the_best_table_is_that_of_brute_force_on_any_number_of_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    cluster = Cluster(H20, Split(prefill=2, decode=2))
    slo = Slo(kind="both", ttft_ms=4000.0, ttft_us_per_prompt_token=0.0, tpot_ms=20.0)
    window = Window(period_s=120.0, settle_s=30.0)
    problem = Problem(cluster, workload_by_name("hybrid"), slo, 1.3, 0, window)
    preparation = prepare(problem, PreparationSettings(clusters=4, history_episodes=1))
    episodes = preparation.source.episodes("tuning", 2)

    def share(actions: tuple[int, ...]) -> float:
        policy = with_actions(preparation.policy, actions)
        met = [run_episode(cluster, episode, policy).is_met(slo) for episode in episodes]
        return float(np.concatenate(met).mean())

    shares = {actions: share(actions) for actions in all_tables(4)}
    assert len(shares) == 16
    actions, attainment = exhaustive_best(cluster, slo, episodes, preparation.policy)
    assert attainment == max(shares.values()) > min(shares.values())
    assert actions == max(shares, key=shares.__getitem__)


def test_too_many_tables_are_not_tried() -> None:
    with pytest.raises(ValueError, match="11 clusters have 2048 tables"):
        all_tables(11)
