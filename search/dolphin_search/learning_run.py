"""The main job, shown as it goes: learn a table, compare it, keep the result."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from dolphin_router.contract import RoutingTable, Score
from dolphin_search.checkpoint import CheckpointFile
from dolphin_search.comparison_run import ComparisonPlan, ComparisonRun
from dolphin_search.learning import LearningSettings, make_table, search
from dolphin_search.preparation import Preparation, prepare
from dolphin_search.progress import progress
from dolphin_search.report.case import LearnedCase
from dolphin_search.samplers.base import Round
from dolphin_sim.problem import Problem


def learn(
    problem: Problem,
    settings: LearningSettings,
    *,
    console: Console,
    checkpoint: CheckpointFile | None = None,
    rounds: list[Round] | None = None,
    plan: ComparisonPlan | None = None,
) -> LearnedCase:
    """Learn a table and, if there is a plan, compare it with the rules.

    Args:
        problem: the case.
        settings: how to search.
        console: where progress is shown.
        checkpoint: where the rounds are kept.
        rounds: of a checkpoint, to go on from.
        plan: of the comparison, whose scores go into the table.

    Raises:
        ValueError: the workload gives too few requests, or no load saturates the cluster.
    """

    def say(line: str) -> None:
        console.print(f"{problem.cluster.split}: {line}", highlight=False)

    preparation = prepare(problem, settings.preparation, say=say)
    rounds = rounds or []
    with progress(console, f"{problem.cluster.split}: rounds", settings.rounds - len(rounds)) as step:
        study = search(preparation, settings, checkpoint=checkpoint, rounds=rounds, on_round=lambda _: step())
    table = make_table(preparation, settings, study)
    say(f"best of {len(study.rounds)} rounds: {' '.join(cluster.action for cluster in table.decider.clusters)}")
    if plan is None:
        return LearnedCase(preparation, study.rounds, table, None)
    comparison = run_comparison(plan, preparation, table, console=console)
    scores = {
        name: Score(attainment=result.attainment, interval=result.attainment_interval)
        for name, result in comparison.results.items()
    }
    table = make_table(preparation, settings, study, scores=scores)
    return LearnedCase(preparation, study.rounds, table, replace(comparison, table=table))


def run_comparison(
    plan: ComparisonPlan, preparation: Preparation, table: RoutingTable | None, *, console: Console
) -> ComparisonRun:
    """Compare a table with the rules on the traffic of a preparation."""
    with progress(console, f"{preparation.cluster.split}: comparison", plan.steps(table)) as step:
        return plan.run(
            preparation.cluster,
            preparation.slo,
            preparation.source,
            preparation.predictor_kind,
            table,
            on_step=step,
        )
