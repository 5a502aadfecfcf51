"""Measure all cases of the results page; each is kept in a file as soon as it is done, so a second run goes on.

python benchmarks/paper/run.py [--out FOLDER] [--group NAME] [--traces FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from cells import Cell, all_cells
from regret import regret_curves

from dolphin_router.atomic_file import replace_file
from dolphin_router.contract import Split
from dolphin_search.comparison_run import ComparisonPlan
from dolphin_search.exhaustive import MOST_CLUSTERS
from dolphin_search.learning import make_table, search
from dolphin_search.preparation import prepare
from dolphin_search.report.document import comparison_document
from dolphin_search.samplers import Round
from dolphin_sim.episode import Window
from dolphin_sim.hardware import load_profile
from dolphin_sim.problem import Problem
from dolphin_sim.simulation import Cluster
from dolphin_sim.workloads import workload_by_name

TRAINING_EPISODES = 4
TEST_EPISODES = 8
SETTLED_POINTS = 0.005
REPOSITORY = Path(__file__).resolve().parents[2]


def measure(cell: Cell, traces: Path) -> dict[str, Any]:
    """Return the cell's comparison for each seed."""
    return {
        "name": cell.name,
        "label": cell.label,
        "split": cell.split,
        "seeds": [_measure(cell, traces, seed) for seed in range(cell.seeds)],
    }


def _measure(cell: Cell, traces: Path, seed: int) -> dict[str, Any]:
    workload = workload_by_name(traces / cell.workload if cell.workload.endswith(".jsonl") else cell.workload)
    profile = load_profile("h20x4-72b")
    cluster = Cluster(profile.replaced(**cell.profile) if cell.profile else profile, Split.parse(cell.split))
    problem = Problem(cluster, workload, cell.slo, cell.rate_per_s, seed, Window())
    settings = replace(cell.learning, sampler=replace(cell.learning.sampler, seed=seed))
    preparation = prepare(problem, settings.preparation)
    study = search(preparation, settings)
    table = make_table(preparation, settings, study)
    affordable = len(preparation.clusters) <= MOST_CLUSTERS
    rules = cell.rules if cell.rules is None or affordable else tuple(r for r in cell.rules if r != "exhaustive-best")
    plan = ComparisonPlan(TRAINING_EPISODES, TEST_EPISODES, with_goodput=cell.group == "headline", only=rules)
    run = plan.run(cluster, cell.slo, preparation.source, preparation.predictor_kind, table)
    return {
        **comparison_document(run),
        "actions": [cluster.action for cluster in table.decider.clusters],
        "rounds": len(study.rounds),
        "rounds_to_settle": _rounds_to_settle(study.rounds),
    }


def _rounds_to_settle(rounds: list[Round]) -> int:
    """Return after how many rounds the best attainment seen was within half a point of the best of all rounds."""
    best = max(entry.measurement.attainment for entry in rounds)
    return next(
        number for number, entry in enumerate(rounds, 1) if entry.measurement.attainment >= best - SETTLED_POINTS
    )


def main() -> int:
    """Measure what is not yet there."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "results" / "paper")
    parser.add_argument("--group", help="measure this group alone: headline, ablation, pure, flip, sensitivity, regret")
    parser.add_argument(
        "--traces",
        type=Path,
        default=Path(os.environ.get("DOLPHIN_TRACES", REPOSITORY.parent / "shared" / "traces")),
        help="the folder of the Mooncake traces",
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    jobs = [(cell.group, cell.name, lambda cell=cell: measure(cell, arguments.traces)) for cell in all_cells()]
    jobs += [
        ("regret", f"regret-{split}".lower(), lambda split=split: regret_curves(split)) for split in ("2P2D", "3P1D")
    ]
    for group, name, job in jobs:
        path = arguments.out / f"{name}.json"
        if path.exists() or arguments.group not in (None, group):
            continue
        if "headline-" in name and "hybrid" not in name and not arguments.traces.is_dir():
            print(f"{name}: left out, there is no folder {arguments.traces}", flush=True)
            continue
        began = time.monotonic()
        replace_file(path, json.dumps(job(), indent=1).encode())
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
