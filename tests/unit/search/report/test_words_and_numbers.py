"""What the report says in words, on the terminal and as JSON."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from dolphin_search.comparison import Percentiles, PolicyResult
from dolphin_search.comparison_run import ComparisonRun
from dolphin_search.measurement import Measurement
from dolphin_search.report.case import LearnedCase
from dolphin_search.report.html import report_document
from dolphin_search.report.plots.rounds import best_so_far
from dolphin_search.report.summary import summary_table
from dolphin_search.report.verdict import verdict
from dolphin_search.report.wording import number, signed
from dolphin_search.samplers import Round


@pytest.fixture
def run(case: LearnedCase) -> ComparisonRun:
    assert case.comparison is not None
    return case.comparison


def printed(run: ComparisonRun, width: int = 100) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(summary_table(run))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def attaining(result: PolicyResult, shares: list[float]) -> PolicyResult:
    """The result with these attainments in its blocks, of 1,000 requests each."""
    sums = np.array([[1_000 * share, 1_000] for share in shares])
    mean = float(np.mean(shares))
    return replace(result, sums=sums, attainment=mean, attainment_interval=(min(shares), max(shares)))


def with_attainments(run: ComparisonRun, **shares: list[float]) -> ComparisonRun:
    names = {name.replace("_", "-"): values for name, values in shares.items()}
    return replace(run, results={name: attaining(run.results[name], values) for name, values in names.items()})


def test_the_summary_fits_into_100_columns_whatever_the_numbers(run: ComparisonRun) -> None:
    everything = attaining(run.results["learned"], [1.0, 1.0])
    nothing = {
        name: replace(
            attaining(result, [0.0, 0.0]), ttft_ms=Percentiles(1, 123_456, 1), tpot_ms=Percentiles(1, 12_345, 1)
        )
        for name, result in run.results.items()
    }
    extreme = replace(
        run,
        results={**nothing, "learned": everything},
        goodputs_per_s=dict.fromkeys(run.results, 1234.5),
    )
    for entry in (run, extreme):
        lines = printed(entry)
        assert not any("…" in line for line in lines)
        assert all(any(line.strip().startswith(name) for line in lines) for name in entry.results)


def test_the_summary_has_the_learned_table_first_then_by_attainment(run: ComparisonRun) -> None:
    few = with_attainments(run, tuned_cost=[0.7, 0.8], always_local=[0.1, 0.3], learned=[0.4, 0.6], llm_d=[0.9, 0.9])
    rows = [line.split()[0] for line in printed(few) if line.split() and line.split()[0] in few.results]
    assert rows == ["learned", "llm-d", "tuned-cost", "always-local"]
    assert any("llm-d *" in line for line in printed(few))


def test_the_summary_takes_no_name_for_markup(run: ComparisonRun) -> None:
    class Renamed:
        name = "[/bold] [red]trace"

    lines = printed(replace(run, source=replace(run.source, workload=Renamed())))  # type: ignore[arg-type]
    assert "[/bold] [red]trace" in lines[0]


def test_the_summary_of_rules_alone_leads_nobody(run: ComparisonRun) -> None:
    rules = {name: result for name, result in run.results.items() if name not in ("learned", "exhaustive-best")}
    alone = replace(run, table=None, results=rules, goodputs_per_s={})
    assert all(any(name in line for line in printed(alone)) for name in rules)
    assert verdict(alone) is None


@pytest.mark.parametrize(
    ("rule", "judgement", "words"),
    [
        ([0.60, 0.70, 0.80], "better", ["better than every rule", "leads by 10.0 points"]),
        ([0.80, 0.90, 0.99], "worse", ["tuned-cost", "the rule is better", "trails by 9.7 points"]),
        ([0.65, 0.90, 0.85], "level", ["as good", "leads by 0.0 points"]),
        ([0.75, 0.85, 0.80], "level", ["as good", "leads by 0.0 points"]),
        ([0.70, 0.80, 0.90], "level", ["as good", "attains exactly the same"]),
    ],
)
def test_the_verdict_says_plainly_which_is_better(
    run: ComparisonRun, rule: list[float], judgement: str, words: list[str]
) -> None:
    few = with_attainments(run, learned=[0.70, 0.80, 0.90], tuned_cost=rule, always_local=[0.1, 0.1, 0.1])
    said = verdict(few)
    assert said is not None
    assert said.judgement == judgement
    for part in ("80.0 %", "70–90 %", *words):
        assert part in f"{said.headline}. {said.text}"


@pytest.mark.parametrize(
    ("best", "words"),
    [
        ([0.75, 0.85, 0.95], "trails by 5.0 points (95 % interval 5.0 to 5.0), its regret"),
        ([0.65, 0.75, 0.85], "does better: it leads by 5.0 points"),
        ([0.70, 0.81, 0.90], "no regret shows"),
    ],
)
def test_the_verdict_gives_the_regret(run: ComparisonRun, best: list[float], words: str) -> None:
    few = with_attainments(run, learned=[0.70, 0.80, 0.90], tuned_cost=[0.5, 0.5, 0.5], exhaustive_best=best)
    said = verdict(few)
    assert said is not None
    assert words in said.text
    assert said.text.count(". ") == 1


def test_the_document_is_json_without_infinities(case: LearnedCase, run: ComparisonRun) -> None:
    lost = replace(run.results["tuned-length"], ttft_ms=Percentiles(1.0, math.inf, math.inf))
    endless = replace(
        run, results={**run.results, "tuned-length": lost}, goodputs_per_s=dict.fromkeys(run.results, math.inf)
    )
    cases = [case, replace(case, comparison=endless), replace(case, comparison=None)]
    document: dict[str, Any] = json.loads(json.dumps(report_document(cases), allow_nan=False))
    whole, _, bare = document["cases"]
    assert whole["table"]["digest"] == case.table.digest
    assert len(whole["rounds"]) == len(case.rounds)
    assert set(whole["comparison"]["policies"]) == set(run.results)
    assert bare["comparison"] is None
    assert report_document([case])["policies"] == whole["comparison"]["policies"]


def test_the_best_table_so_far_is_that_of_the_highest_mean_reward() -> None:
    def measured(actions: tuple[int, ...], attainment: float, log_latency: float) -> Round:
        return Round(actions, Measurement(100, attainment, log_latency, (100,), (attainment,)))

    rounds = [
        measured((0,), 0.5, -1.0),
        measured((1,), 0.9, -2.0),
        measured((1,), 0.3, -2.0),
        measured((1,), 0.0, 2.0),
    ]
    assert best_so_far(rounds, "global") == pytest.approx([0.5, 0.9, 0.6, 0.5])
    assert best_so_far(rounds, "log-latency") == pytest.approx([0.5, 0.5, 0.5, 0.4])


def test_numbers_are_written_as_people_do() -> None:
    assert number(-0.04, 1) == "0.0"
    assert number(-1234.56, 1) == "−1,234.6"
    assert number(math.inf, 1) == "∞"
    assert [signed(value, 1) for value in (0.04, 0.06, -0.06, -0.0)] == ["0.0", "+0.1", "−0.1", "0.0"]
