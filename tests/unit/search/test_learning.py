"""From traffic to a table, a comparison and a report, on small cases."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from dolphin_router.contract import Slo, Split, load_table, save_table, seal, write_table
from dolphin_router.features import Features
from dolphin_router.load import IDLE
from dolphin_router.policies import policy_from_table
from dolphin_search.attainment import attainments
from dolphin_search.cli import main
from dolphin_search.clustering import CLUSTERING_METHODS, ClusteringMethod, fit_clusters
from dolphin_search.comparison_run import ComparisonPlan
from dolphin_search.learning import LearningSettings, make_table, search
from dolphin_search.output_length.classes import learn_classes
from dolphin_search.output_length.predictors import SimulatedPredictor
from dolphin_search.preparation import PreparationSettings, prepare
from dolphin_search.report.case import LearnedCase
from dolphin_search.report.html import report_document, write_report
from dolphin_search.samplers import ScanThenEpsilonGreedy
from dolphin_sim.episode import Window
from dolphin_sim.hardware import load_profile
from dolphin_sim.policy import with_actions
from dolphin_sim.problem import Problem
from dolphin_sim.simulation import Cluster
from dolphin_sim.workloads import workload_by_name

SLO = Slo(kind="both", ttft_ms=8000.0, ttft_us_per_prompt_token=0.0, tpot_ms=20.0)
POLICIES = {
    "learned", "exhaustive-best", "always-local", "always-remote", "tuned-length", "tuned-effective-length",
    "dynamo-default", "dynamo-isl-bounding", "dynamo-isl-or-load", "tuned-dynamo-isl-bounding",
    "tuned-dynamo-isl-or-load", "llm-d", "tuned-cost",
}  # fmt: skip
QUICK = ["--period-s", "60", "--settle-s", "30", "--rounds", "4", "--clusters", "2", "--periods-per-round", "1"]


def learned_case() -> LearnedCase:
    cluster = Cluster(load_profile("h20x4-72b"), Split(prefill=2, decode=2))
    problem = Problem(cluster, workload_by_name("hybrid"), SLO, 1.03, 0, Window(period_s=120.0, settle_s=60.0))
    settings = LearningSettings(rounds=20, periods_per_round=1)
    preparation = prepare(problem, settings.preparation)
    study = search(preparation, settings)
    table = make_table(preparation, settings, study)
    run = ComparisonPlan(training_episodes=1, test_episodes=2).run(
        cluster, SLO, preparation.source, preparation.predictor_kind, table
    )
    return LearnedCase(preparation, study.rounds, table, run)


@pytest.fixture(scope="module")
def case() -> LearnedCase:
    return learned_case()


def test_equal_inputs_make_equal_tables_and_reports(case: LearnedCase, tmp_path: Path) -> None:
    again = learned_case()
    moment = {"created_at": "2026-01-01T00:00:00Z"}
    assert write_table(again.table.model_copy(update=moment)) == write_table(case.table.model_copy(update=moment))
    for name, entry in (("a", case), ("b", again)):
        write_report(tmp_path / name, [entry], title="Table")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_comparison_document_is_what_scripts_rely_on(case: LearnedCase) -> None:
    document = json.loads(json.dumps(report_document([case]), allow_nan=False))
    assert set(document["policies"]) == POLICIES
    for entry in document["policies"].values():
        assert set(entry["ttft_ms"]) == set(entry["tpot_ms"]) == {"p50", "p90", "p99"}
        low, high = entry["attainment_interval"]
        assert 0 <= low <= entry["attainment"] <= high <= 1
    assert document["policies"]["learned"]["attainment"] > document["policies"]["always-local"]["attainment"]


def test_the_report_needs_no_network_and_names_everything(case: LearnedCase, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, [case], title="<b>A & B</b>")
    text = path.read_text("utf-8")
    HTMLParser().feed(text)
    assert "<b>A" not in text
    assert "src=" not in text
    assert "url(http" not in text
    assert POLICIES - {"learned"} <= {name for name in POLICIES if name in text}


@pytest.mark.parametrize("method", CLUSTERING_METHODS)
def test_the_table_assigns_as_its_clusters_were_found(case: LearnedCase, method: ClusteringMethod) -> None:
    features = case.preparation.features
    clusters = fit_clusters(features, count=5, method=method)
    content = case.table.model_copy(update={"decider": clusters.decider(["remote"] * len(clusters))})
    policy = policy_from_table(content)
    found = np.bincount([policy.decide(Features(*row), IDLE).cluster for row in features.tolist()], minlength=5)
    assert np.abs(found - [component.samples for component in clusters.components]).sum() <= 0.02 * len(features)


def test_there_are_no_more_clusters_than_distinct_requests() -> None:
    features = np.repeat([[100.0, 100.0, 100.0, 0.0], [9_000.0, 9_000.0, 50.0, 0.0]], 20, axis=0)
    for method in CLUSTERING_METHODS:
        assert len(fit_clusters(features, count=8, method=method)) == 2
    with pytest.raises(ValueError, match="64"):
        fit_clusters(features, count=65)
    with pytest.raises(ValueError, match="no requests"):
        fit_clusters(features[:0], count=8)


def test_a_simulated_classifier_is_right_as_often_as_stated() -> None:
    requests = workload_by_name("hybrid").episode(rate_per_s=2.0, duration_s=2_000.0, seed=0, part="train")
    classes = learn_classes(requests.output_tokens)
    truth = classes.representatives(classes.of(requests.output_tokens))
    for accuracy in (0.6, 0.8, 1.0):
        predictor = SimulatedPredictor(classes, accuracy)
        right = [np.mean(predictor.expected_output_tokens(requests, seed=seed) == truth) for seed in range(8)]
        assert np.mean(right) == pytest.approx(accuracy, abs=0.01)


def test_a_learned_table_is_better_than_one_drawn_at_random_where_the_path_matters() -> None:
    cluster = Cluster(load_profile("h20x4-72b"), Split(prefill=2, decode=2))
    leads = []
    for seed in range(5):
        window = Window(period_s=200.0, settle_s=60.0)
        problem = Problem(cluster, workload_by_name("hybrid"), SLO, 1.28, seed, window)
        settings = LearningSettings(
            PreparationSettings(clusters=6, history_episodes=1),
            ScanThenEpsilonGreedy(seed=seed),
            rounds=20,
            periods_per_round=1,
        )
        preparation = prepare(problem, settings.preparation)
        drawn = np.random.default_rng(seed).integers(0, 2, (6, 6)).tolist()
        tables = [search(preparation, settings).best(), *map(tuple, drawn)]
        policies = [with_actions(preparation.policy, actions) for actions in tables]
        held_out = preparation.source.episodes("test", 2)
        learned, *others = attainments(cluster, SLO, held_out, policies).tolist()
        leads.append(learned - np.mean(others))
    assert np.median(leads) > 0.1


def test_learn_then_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, report, document = tmp_path / "table.json", tmp_path / "report.html", tmp_path / "report.json"
    arguments = ["learn", *QUICK, "--split", "3P1D", "--no-compare", "--out", str(table)]
    assert main([*arguments, "--report", str(report), "--json", str(document)]) == 0
    assert load_table(table).split == Split(prefill=3, decode=1)
    assert report.exists()
    assert not (tmp_path / "table.json.checkpoint").exists()
    result = tmp_path / "comparison.json"
    quick = ["--period-s", "60", "--settle-s", "30", "--episodes", "1", "--training-episodes", "1", "--no-goodput"]
    compare = ["compare", "--table", str(table), *quick, "--json", str(result)]
    assert main([*compare, "--policy", "learned", "--policy", "always-remote"]) == 0
    measured = json.loads(result.read_text("utf-8"))
    assert measured["problem"]["split"] == "3P1D"
    assert set(measured["policies"]) == {"learned", "always-remote"}
    assert main([*compare, "--policy", "learned", "--rate", "0.5", "--split", "2P2D"]) == 0
    measured = json.loads(result.read_text("utf-8"))
    assert (measured["problem"]["split"], measured["problem"]["rate_per_s"]) == ("2P2D", 0.5)
    capsys.readouterr()
    assert main([*compare, "--policy", "nope"]) == 2
    assert "nope" in capsys.readouterr().err


def test_a_table_is_compared_with_the_expected_lengths_it_was_learned_with(tmp_path: Path) -> None:
    table, result = tmp_path / "table.json", tmp_path / "comparison.json"
    lengths = ["--expected-lengths", "simulated", "--accuracy", "0.4"]
    assert main(["learn", *QUICK, "--clusters", "8", *lengths, "--no-compare", "--out", str(table)]) == 0
    learned = load_table(table)
    assert learned.provenance.expected_lengths_accuracy == 0.4
    # Prompts of one length have clusters of several answer lengths, one beside the other: let the answer decide.
    clusters = tuple(
        cluster.model_copy(update={"action": ("local", "remote")[index % 2]})
        for index, cluster in enumerate(learned.decider.clusters)
    )
    decider = learned.decider.model_copy(update={"clusters": clusters})
    save_table(table, seal(learned.model_copy(update={"decider": decider})))
    quick = ["--period-s", "300", "--settle-s", "30", "--episodes", "2", "--training-episodes", "1", "--no-goodput"]

    def measured(*words: str) -> float:
        arguments = ["compare", "--table", str(table), *quick, "--policy", "learned", "--json", str(result)]
        assert main([*arguments, *words]) == 0
        score: float = json.loads(result.read_text("utf-8"))["policies"]["learned"]["log_latency"]
        return score

    assert measured() == measured("--accuracy", "0.4") != measured("--accuracy", "1")


def test_a_checkpoint_is_not_overwritten_by_accident(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = tmp_path / "table.json.checkpoint"
    left.write_text("anything", "utf-8")
    arguments = ["learn", *QUICK, "--no-compare", "--out", str(tmp_path / "table.json")]
    assert main(arguments) == 2
    assert "--resume" in capsys.readouterr().err
    assert main([*arguments, "--resume"]) == 2
    assert left.read_text("utf-8") == "anything"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["learn", "--clusters", "65"], "65"),
        (["learn", "--out", "/nowhere/table.json"], "there is no folder /nowhere"),
        (["learn", "--report", "/nowhere/report.html"], "--report"),
        (["learn", "--json", "/nowhere/report.json"], "--json"),
        (["learn", "--checkpoint", "/nowhere/checkpoint"], "--checkpoint"),
        (["learn", "--report", "same", "--json", "same"], "--report"),
        (["learn", "--rounds", "2000"], "--rounds"),
        (["learn", "--rate", "0.0001"], "raise the rate"),
        (["compare", "--json", "/nowhere/comparison.json"], "--json"),
        (["compare", "--rate", "0.0001"], "raise the rate"),
        (["compare", "--rate", "1e9"], "--rate"),
        (["demo", "--out", "/dev/null/demo"], "--out"),
        (["compare", "--table", "/nowhere/table.json"], "/nowhere/table.json"),
        (["demo", "--trace", "/nowhere/trace.jsonl"], "/nowhere/trace.jsonl"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    message = capsys.readouterr().err.strip()
    assert named in message
    assert "\n" not in message
