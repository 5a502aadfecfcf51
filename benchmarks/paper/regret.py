"""How far the table that a search would choose is from the best of all, after each round.

Every table's attainment on held-out periods is measured once; then each search only has to be run, and its choice
looked up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cells import RATES, T

from dolphin_router.contract import Split
from dolphin_search.attainment import attainments
from dolphin_search.exhaustive import all_tables
from dolphin_search.learning import LearningSettings, search
from dolphin_search.preparation import prepare
from dolphin_search.samplers import ScanThenEpsilonGreedy
from dolphin_sim.episode import Window
from dolphin_sim.hardware import load_profile
from dolphin_sim.policy import with_actions
from dolphin_sim.problem import Problem
from dolphin_sim.simulation import Cluster
from dolphin_sim.workloads import workload_by_name

SEEDS = 5
ROUNDS = 80
PERIODS_S = (60.0, 120.0, 240.0, 600.0)
TRAINING_EPISODES = 8
TEST_EPISODES = 16


def regret_curves(split: str) -> dict[str, Any]:
    """Return for each way to search and each seed the regret, in points, of the choice after every round."""
    curves: dict[str, list[list[float]]] = {}
    for seed in range(SEEDS):
        cluster = Cluster(load_profile("h20x4-72b"), Split.parse(split))
        problem = Problem(cluster, workload_by_name("hybrid"), T, RATES[split], seed, Window())
        preparation = prepare(problem, LearningSettings().preparation)
        tables = all_tables(len(preparation.clusters))
        policies = [with_actions(preparation.policy, actions) for actions in tables]
        training = attainments(cluster, T, preparation.source.episodes("tuning", TRAINING_EPISODES), policies)
        held_out = attainments(cluster, T, preparation.source.episodes("test", TEST_EPISODES), policies)
        best = float(held_out[training.argmax()])
        value = dict(zip(tables, held_out.tolist(), strict=True))
        for period_s in PERIODS_S:
            for arrivals, periods in (("common", 1), ("fresh", 1), ("common", 4)):
                if periods > 1 and period_s < max(PERIODS_S):
                    continue
                settings = LearningSettings(
                    sampler=ScanThenEpsilonGreedy(seed=seed),
                    rounds=ROUNDS,
                    arrivals=arrivals,
                    periods_per_round=periods,
                )
                source = replace(preparation.source, window=Window(period_s=period_s))
                study = search(replace(preparation, source=source), settings)
                curve = [
                    100.0 * (best - value[settings.sampler.best(study.rounds[: n + 1])])
                    for n in range(len(study.rounds))
                ]
                curves.setdefault(f"{arrivals} {periods} x {period_s:g} s", []).append(curve)
    return {"split": split, "curves": curves}
