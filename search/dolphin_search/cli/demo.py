"""learn tables for 2P2D, then for 3P1D as after a scale event, compare both with the rules, and serve by the first"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from dolphin_router.cli.show import clusters_text
from dolphin_router.contract import Slo, Split, write_table
from dolphin_search.comparison_run import ComparisonPlan
from dolphin_search.console import result_console
from dolphin_search.learning import LearningSettings
from dolphin_search.learning_run import learn
from dolphin_search.progress import progress
from dolphin_search.replay.rehearsal import Candidate, Rehearsal, RehearsalPlan, Rehearser
from dolphin_search.replay.wording import rehearsal_lines
from dolphin_search.report.case import LearnedCase
from dolphin_search.report.document import write_json
from dolphin_search.report.html import report_document, write_report
from dolphin_search.report.summary import summary_table
from dolphin_search.samplers import ScanThenEpsilonGreedy
from dolphin_sim.cli import values
from dolphin_sim.cli.problem_arguments import (
    DEFAULT_PROFILE,
    DEFAULT_RATES_PER_S,
    DEFAULT_SLO,
    DEFAULT_WORKLOAD,
    ArgumentError,
)
from dolphin_sim.cli.result_arguments import check_result_files
from dolphin_sim.episode import Window
from dolphin_sim.hardware import load_profile
from dolphin_sim.problem import Problem
from dolphin_sim.result_file import write_result
from dolphin_sim.simulation import Cluster
from dolphin_sim.workloads import Workload, workload_by_name

NAME = "demo"
SPLITS = (Split(prefill=2, decode=2), Split(prefill=3, decode=1))

# Prompts of real traces reach a hundred thousand tokens, for which no fixed limit is right.
TRACE_SLO = Slo(kind="both", ttft_ms=3000.0, ttft_us_per_prompt_token=600.0, tpot_ms=20.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--trace", metavar="FILE", type=Path, help="a Mooncake or Azure trace instead of generated traffic"
    )
    parser.add_argument(
        "--truncated-ok", action="store_true", help="leave out the last line of a trace when it was cut off"
    )
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        type=Path,
        default=Path("results/demo"),
        help="where tables and report go (default: %(default)s)",
    )
    parser.add_argument("--seed", metavar="N", type=values.seed, default=0, help="(default: %(default)s)")
    parser.add_argument(
        "--no-rehearsal", action="store_true", help="leave out the HTTP traffic through a router over emulated engines"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the demo and return its exit code."""
    console = result_console()
    table_paths = {split: arguments.out / f"table-{str(split).lower()}.json" for split in SPLITS}
    report, document = arguments.out / "report.html", arguments.out / "report.json"
    _make_folder(arguments.out)
    for path in (*table_paths.values(), report, document):
        check_result_files(out=path)
    if arguments.trace is None:
        workload, slo = workload_by_name(DEFAULT_WORKLOAD), DEFAULT_SLO
    else:
        workload, slo = workload_by_name(arguments.trace, truncated_ok=arguments.truncated_ok), TRACE_SLO
    cases = []
    for split in SPLITS:
        rate_per_s = DEFAULT_RATES_PER_S[split] if arguments.trace is None else None
        problem = _problem(workload, slo, split, rate_per_s, arguments.seed)
        settings = LearningSettings(sampler=ScanThenEpsilonGreedy(seed=arguments.seed))
        case = learn(problem, settings, console=console, plan=ComparisonPlan())
        write_result(table_paths[split], write_table(case.table))
        console.print(f"\n{table_paths[split]}", highlight=False)
        console.print(clusters_text(case.table), highlight=False, markup=False, soft_wrap=True)
        assert case.comparison is not None
        console.print(summary_table(case.comparison))
        cases.append(case)
    if not arguments.no_rehearsal:
        cases[0] = replace(cases[0], rehearsal=_rehearse(cases[0], table_paths[SPLITS[0]], console))
    write_report(report, cases, title=f"Learned routing on {workload.name} traffic")
    write_json(document, report_document(cases))
    console.print(f"Report: {report}", highlight=False)
    return 0


def _rehearse(case: LearnedCase, table: Path, console: Console) -> Rehearsal:
    """Send real traffic through a router that decides by the case's table, and show what came of it."""
    split = case.table.split
    plan = RehearsalPlan()
    rehearser = Rehearser([Candidate(case.preparation, case.table, table)], plan)
    console.print(
        f"\n{split}: HTTP traffic through a router over emulated engines, {plan.time_scale:g} times as fast as real",
        highlight=False,
    )
    with progress(console, f"{split}: requests", rehearser.requests) as step:
        [rehearsal] = rehearser.run(lambda _: step())
    for line in rehearsal_lines(rehearsal):
        console.print(f"{split}: {line}", highlight=False, markup=False, soft_wrap=True)
    return rehearsal


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise ArgumentError(f"argument --out: folder {str(path)!r} cannot be made: {reason}; give another") from error


def _problem(workload: Workload, slo: Slo, split: Split, rate_per_s: float | None, seed: int) -> Problem:
    cluster = Cluster(load_profile(DEFAULT_PROFILE), split)
    return Problem(cluster, workload, slo, rate_per_s, seed, Window())
