"""compare a table with the rules of other routers on held-out arrivals"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from dolphin_router.contract import RoutingTable, load_table
from dolphin_search.cli.settings_arguments import add_expected_length_arguments
from dolphin_search.comparison_run import TEST_EPISODES, TRAINING_EPISODES, ComparisonPlan
from dolphin_search.console import progress_console, result_console
from dolphin_search.output_length.predictors import NoPredictor, Predictor, PredictorKind, predictor_of_table
from dolphin_search.progress import progress
from dolphin_search.report.document import comparison_document, write_json
from dolphin_search.report.summary import summary_table
from dolphin_search.traffic import EpisodeSource
from dolphin_sim.cli import values
from dolphin_sim.cli.problem_arguments import (
    NO_RATE,
    ArgumentError,
    add_problem_arguments,
    problem_from_arguments,
)
from dolphin_sim.cli.result_arguments import check_result_files

NAME = "compare"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = (
        "Compares a table with the rules of other routers, as they come and tuned, on arrivals that neither has seen. "
        "Split, SLO, rate, workload, profile and expected answer lengths are the table's unless given."
    )
    parser.add_argument(
        "--table", metavar="FILE", type=Path, help="the table, named `learned` in the result (default: rules alone)"
    )
    add_problem_arguments(parser)
    add_expected_length_arguments(parser)
    group = parser.add_argument_group("comparison")
    group.add_argument(
        "--policy",
        metavar="NAME",
        dest="policies",
        action="append",
        help="measure this policy alone; may be given several times (default: all)",
    )
    group.add_argument(
        "--episodes",
        metavar="N",
        type=values.count,
        default=TEST_EPISODES,
        help="held-out periods (default: %(default)s)",
    )
    group.add_argument(
        "--training-episodes",
        metavar="N",
        type=values.count,
        default=TRAINING_EPISODES,
        help="periods to tune the rules on (default: %(default)s)",
    )
    group.add_argument("--no-goodput", action="store_true", help="leave out the search for each policy's highest rate")
    group.add_argument("--no-exhaustive", action="store_true", help="leave out the best of all tables")
    group.add_argument("--json", metavar="FILE", type=Path, help="the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Compare, and return the exit code."""
    console = progress_console()
    table = None if arguments.table is None else load_table(arguments.table)
    if table is not None:
        # What the table was learned for takes the place of the general defaults; what the user said stays.
        arguments.parser.set_defaults(**_defaults_of(table))
        arguments = arguments.parser.parse_args(arguments.words)
    check_result_files(json=arguments.json)
    problem = problem_from_arguments(arguments)
    if problem.rate_per_s is None:
        raise ArgumentError(NO_RATE)
    source = EpisodeSource(problem.workload, problem.rate_per_s, problem.window, problem.seed)
    kind: PredictorKind = "none"
    predictor: Predictor = NoPredictor()
    if table is not None:
        kind, predictor = predictor_of_table(table, arguments.expected_lengths, accuracy=arguments.accuracy)
    plan = ComparisonPlan(
        training_episodes=arguments.training_episodes,
        test_episodes=arguments.episodes,
        with_goodput=not arguments.no_goodput,
        with_exhaustive=not arguments.no_exhaustive,
        only=None if arguments.policies is None else tuple(arguments.policies),
    )
    source = replace(source, predictor=predictor)
    with progress(console, f"{problem.cluster.split}: comparison", plan.steps(table)) as step:
        result = plan.run(problem.cluster, problem.slo, source, kind, table, on_step=step)
    if arguments.json is not None:
        write_json(arguments.json, comparison_document(result))
    result_console().print(summary_table(result))
    return 0


def _defaults_of(table: RoutingTable) -> dict[str, object]:
    provenance = table.provenance
    defaults: dict[str, object] = {
        "split": table.split,
        "slo_kind": table.slo.kind,
        "ttft_ms": table.slo.ttft_ms,
        "ttft_us_per_prompt_token": table.slo.ttft_us_per_prompt_token,
        "tpot_ms": table.slo.tpot_ms,
        "rate": provenance.arrival_rate_per_s,
        "workload": provenance.workload,
        "profile": provenance.hardware_profile,
        "accuracy": provenance.expected_lengths_accuracy if provenance.expected_lengths == "simulated" else None,
    }
    return {name: value for name, value in defaults.items() if value is not None}
