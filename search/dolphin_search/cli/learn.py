"""learn a table in simulation, compare it with the rules, and write both"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dolphin_router.contract import most_rounds, write_table
from dolphin_search.checkpoint import CheckpointFile
from dolphin_search.cli.settings_arguments import add_settings_arguments, settings_from_arguments
from dolphin_search.comparison_run import ComparisonPlan
from dolphin_search.console import progress_console, result_console
from dolphin_search.learning import default_checkpoint_path, search_fingerprint
from dolphin_search.learning_run import learn
from dolphin_search.report.document import write_json
from dolphin_search.report.html import report_document, write_report
from dolphin_search.report.summary import summary_table
from dolphin_sim.cli.command import INTERRUPTED
from dolphin_sim.cli.problem_arguments import ArgumentError, add_problem_arguments, problem_from_arguments
from dolphin_sim.cli.result_arguments import check_result_files
from dolphin_sim.result_file import write_result

NAME = "learn"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--environment",
        choices=("simulated",),
        default="simulated",
        help="where tables are measured (default: %(default)s)",
    )
    add_problem_arguments(parser)
    add_settings_arguments(parser)
    group = parser.add_argument_group("result")
    group.add_argument(
        "--out", metavar="FILE", type=Path, default=Path("table.json"), help="the table (default: %(default)s)"
    )
    group.add_argument("--report", metavar="FILE", type=Path, help="an HTML report")
    group.add_argument("--json", metavar="FILE", type=Path, help="the same as JSON")
    group.add_argument("--no-compare", action="store_true", help="leave out the comparison with the rules")
    group.add_argument("--checkpoint", metavar="FILE", type=Path, help="(default: FILE.checkpoint beside the table)")
    group.add_argument("--resume", action="store_true", help="go on from the checkpoint of an interrupted search")


def run(arguments: argparse.Namespace) -> int:
    """Learn, and return the exit code."""
    console = progress_console()
    _check_rounds(arguments.rounds, clusters=arguments.clusters)
    path = arguments.checkpoint or default_checkpoint_path(arguments.out)
    check_result_files(out=arguments.out, report=arguments.report, json=arguments.json, checkpoint=path)
    problem = problem_from_arguments(arguments)
    settings = settings_from_arguments(arguments)
    checkpoint = CheckpointFile(path, fingerprint=search_fingerprint(problem, settings))
    if not arguments.resume and path.exists():
        raise ArgumentError(
            f"{path}: an interrupted search left this checkpoint; go on with --resume, or remove the file to start anew"
        )
    rounds = checkpoint.load() if arguments.resume else []
    if len(rounds) > arguments.rounds:
        raise ArgumentError(
            f"argument --rounds: {path} has {len(rounds)} rounds already, more than {arguments.rounds}; ask for "
            f"{len(rounds)} to end the search with these, or for more"
        )
    try:
        case = learn(
            problem,
            settings,
            console=console,
            checkpoint=checkpoint,
            rounds=rounds,
            plan=None if arguments.no_compare else ComparisonPlan(),
        )
    except KeyboardInterrupt:
        kept = f"the rounds so far are in {path}: go on with --resume" if path.exists() else "no round was finished"
        print(f"dolphin-search: interrupted; {kept}", file=sys.stderr)
        return INTERRUPTED
    write_result(arguments.out, write_table(case.table))
    if arguments.report is not None:
        write_report(arguments.report, [case], title=f"Routing table for {case.table.split}")
    if arguments.json is not None:
        write_json(arguments.json, report_document([case]))
    checkpoint.remove()
    if case.comparison is not None:
        result_console().print(summary_table(case.comparison))
    written = [arguments.out, *(path for path in (arguments.report, arguments.json) if path is not None)]
    console.print(f"wrote {', '.join(map(str, written))}", highlight=False)
    return 0


def _check_rounds(rounds: int, *, clusters: int) -> None:
    if rounds > most_rounds(clusters):
        raise ArgumentError(
            f"argument --rounds: {rounds} rounds of {clusters} clusters do not fit into a checkpoint; "
            f"{most_rounds(clusters)} are the most"
        )
