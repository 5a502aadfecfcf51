"""A small learned case with a comparison of all policies."""

from __future__ import annotations

import pytest

from dolphin_router.contract import Slo, Split
from dolphin_search.comparison_run import ComparisonPlan
from dolphin_search.learning import LearningSettings, make_table, search
from dolphin_search.preparation import PreparationSettings, prepare
from dolphin_search.report.case import LearnedCase
from dolphin_sim.episode import Window
from dolphin_sim.hardware import load_profile
from dolphin_sim.problem import Problem
from dolphin_sim.simulation import Cluster
from dolphin_sim.workloads import workload_by_name


@pytest.fixture(scope="session")
def case() -> LearnedCase:
    cluster = Cluster(load_profile("h20x4-72b"), Split(prefill=2, decode=2))
    slo = Slo(kind="both", ttft_ms=8000.0, ttft_us_per_prompt_token=0.0, tpot_ms=20.0)
    problem = Problem(cluster, workload_by_name("hybrid"), slo, 1.2, 0, Window(period_s=120.0, settle_s=30.0))
    settings = LearningSettings(
        preparation=PreparationSettings(clusters=3, history_episodes=1), rounds=7, periods_per_round=1
    )
    preparation = prepare(problem, settings.preparation)
    study = search(preparation, settings)
    table = make_table(preparation, settings, study)
    run = ComparisonPlan(training_episodes=1, test_episodes=1).run(
        cluster, slo, preparation.source, preparation.predictor_kind, table
    )
    return LearnedCase(preparation, study.rounds, table, run)
