"""Requests that no worker can hold count as missed, and nothing breaks on them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from dolphin_router.contract import Slo, Split
from dolphin_search.cli import main
from dolphin_search.comparison import Percentiles
from dolphin_search.comparison_run import ComparisonPlan
from dolphin_search.learning import LearningSettings, make_table, search
from dolphin_search.measurement import mean_log_latency
from dolphin_search.preparation import PreparationSettings, prepare
from dolphin_sim.episode import Window
from dolphin_sim.hardware import load_profile
from dolphin_sim.outcomes import Outcomes
from dolphin_sim.policy import always_remote
from dolphin_sim.problem import Problem
from dolphin_sim.simulation import Cluster, simulate
from dolphin_sim.workloads import workload_by_name

QUICK = ["--period-s", "60", "--settle-s", "30", "--rounds", "4", "--periods-per-round", "1", "--clusters", "2"]


def test_a_table_is_learned_where_some_requests_fit_no_worker(tmp_path: Path) -> None:
    table, document = tmp_path / "table.json", tmp_path / "report.json"
    arguments = ["learn", *QUICK, "--set", "kv_capacity_tokens=6000", "--out", str(table), "--json", str(document)]
    assert main([*arguments, "--no-compare"]) == 0
    rounds = json.loads(document.read_text("utf-8"))["cases"][0]["rounds"]
    assert all(sum(entry["cluster_requests"]) < entry["requests"] for entry in rounds)


def test_percentiles_among_requests_without_an_answer_are_infinite() -> None:
    values_ms = np.array([1.0] * 80 + [math.inf] * 20)
    assert Percentiles.of(values_ms) == Percentiles(1.0, math.inf, math.inf)
    assert Percentiles.of(np.array([1.0] * 9 + [math.inf])).p50 == 1.0
    assert Percentiles.of(np.full(3, math.inf)) == Percentiles(math.inf, math.inf, math.inf)


def test_a_limit_of_0_that_is_met_does_not_hide_the_other_limit() -> None:
    slo = Slo(kind="both", ttft_ms=10.0, ttft_us_per_prompt_token=0.0, tpot_ms=0.0)
    requests = workload_by_name("humaneval").episode(rate_per_s=1.0, duration_s=30.0, seed=0, part="train")
    cluster = Cluster(load_profile("h20x4-72b"), Split(prefill=1, decode=1))
    columns = vars(simulate(cluster, requests, always_remote()))
    one_token = Outcomes(**{**columns, "output_tokens": np.ones(len(requests), dtype=np.int64)})
    assert (one_token.ttft_ms > slo.ttft_ms).all()
    assert mean_log_latency(one_token, slo) < 0


def test_tables_are_not_tried_out_when_their_best_is_not_asked_for() -> None:
    cluster = Cluster(load_profile("h20x4-72b"), Split(prefill=2, decode=2))
    slo = Slo(kind="both", ttft_ms=8000.0, ttft_us_per_prompt_token=0.0, tpot_ms=20.0)
    problem = Problem(cluster, workload_by_name("hybrid"), slo, 1.0, 0, Window(period_s=60.0, settle_s=30.0))
    settings = LearningSettings(PreparationSettings(clusters=3), rounds=2, periods_per_round=1)
    preparation = prepare(problem, settings.preparation)
    table = make_table(preparation, settings, search(preparation, settings))
    plan = ComparisonPlan(1, 1, with_goodput=False, only=("learned",))
    steps: list[None] = []
    run = plan.run(
        cluster, slo, preparation.source, preparation.predictor_kind, table, on_step=lambda: steps.append(None)
    )
    assert list(run.results) == ["learned"]
    assert len(steps) == plan.steps(table) == 1
