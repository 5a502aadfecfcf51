"""Measure our router beside its peers: fresh processes for each case, taking turns, with the same checked load.

    python benchmarks/router/compare.py [--targets ours,vllm-router,sglang-router,direct] [--cases unary,...]
        [--repetitions 5] [--measured-s 5] [--resume] [--json]

The router has core 0, stub engine and load generator share core 1. Each result is kept as soon as it is there; after
an interruption ``--resume`` goes on. Exits with 1 when an answer was wrong, work unequal, or a goal missed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from cases import CASES, Case
from figures import as_document, as_text, goals
from peers import REQUIREMENTS
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from runs import Run, RunFile
from targets import RESULTS, TARGETS, Target
from trial import TrialError, measure

import dolphin_router

INTERRUPTED: Final = 130


def plan(cases: Sequence[Case], targets: Sequence[Target], repetitions: int) -> Iterator[tuple[int, Case, Target]]:
    """Yield all measurements. Who begins changes from repetition to repetition."""
    for repetition in range(repetitions):
        first = repetition % len(targets)
        for case in cases:
            for target in (*targets[first:], *targets[:first]):
                yield repetition, case, target


def machine() -> dict[str, Any]:
    """Return what the figures depend on, besides the settings; ``ours`` is a hash of the router's code."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    ours = hashlib.sha256()
    for path in sorted(Path(dolphin_router.__path__[0]).rglob("*.py")):
        ours.update(path.read_bytes())
    return {
        "cores": os.cpu_count(),
        "processor": models[0].partition(":")[2].strip() if models else platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "ours": ours.hexdigest()[:12],
        "peers": list(REQUIREMENTS),
    }


def chosen(text: str, known: dict[str, Any], what: str) -> list[Any]:
    """Return the named things in the order given.

    Raises:
        argparse.ArgumentTypeError: one is not known.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"no {what} {', '.join(unknown) or 'given'}: choose from {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is not yet there, print, and return the exit code."""
    arguments = _arguments(argv)
    console = Console(stderr=True)
    if (os.cpu_count() or 1) < 2:
        console.print("compare: this needs two cores, one of them for the router", style="red")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was started is ended
    settings = {"warm_up_s": arguments.warm_up_s, "measured_s": arguments.measured_s}
    try:
        runs = RunFile.open(arguments.out, settings, machine(), resume=arguments.resume)
    except ValueError as error:
        console.print(f"compare: {error}", style="red", markup=False)
        return 2
    try:
        for target in arguments.targets:
            target.prepare()
        _measure(arguments, runs, settings, console)
    except subprocess.CalledProcessError as error:
        console.print(f"compare: the peers cannot be installed: {error}", style="red", markup=False)
        return 2
    except KeyboardInterrupt:
        console.print("\ninterrupted; what was measured is kept: go on with --resume")
        return INTERRUPTED
    names = [case.name for case in arguments.cases]
    targets = [target.name for target in arguments.targets]
    wanted = [run for run in runs.runs if run.case in names and run.target in targets]
    if arguments.json:
        print(json.dumps(as_document(runs.header, wanted)))
    else:
        print(as_text(wanted))
    worthless = [run for run in wanted if run.faults]
    for run in worthless:
        console.print(f"{run.name} is worthless: {'; '.join(run.faults)}", style="red", markup=False)
    return int(bool(worthless) or any(goal.is_met is False for goal in goals(wanted)))


def _measure(arguments: argparse.Namespace, runs: RunFile, settings: dict[str, float], console: Console) -> None:
    todo = [
        (repetition, case, target)
        for repetition, case, target in plan(arguments.cases, arguments.targets, arguments.repetitions)
        if not runs.has(case.name, target.name, repetition)
    ]
    columns = (TextColumn("{task.description:<32}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=len(todo))
        for repetition, case, target in todo:
            name = f"{case.name} {target.name} {repetition + 1}/{arguments.repetitions}"
            progress.update(bar, description=name)
            began_s = time.monotonic()
            try:
                result = measure(case, target, **settings)
            except TrialError as error:
                result = {"faults": [str(error)]}
            run = Run(case=case.name, target=target.name, repetition=repetition, result=result)
            runs.add(run)
            progress.advance(bar)
            if not console.is_terminal or run.faults:
                rate = f"{result['answers_per_s']:.0f}/s" if "answers_per_s" in result else "failed"
                line = f"{name}: {rate} in {time.monotonic() - began_s:.0f} s {'; '.join(run.faults)}"
                console.print(line, markup=False, highlight=False)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--targets",
        type=lambda text: chosen(text, TARGETS, "target"),
        default=list(TARGETS.values()),
        help=f"separated by commas; all unless given: {','.join(TARGETS)}",
    )
    parser.add_argument(
        "--cases",
        type=lambda text: chosen(text, CASES, "case"),
        default=list(CASES.values()),
        help=f"separated by commas; all unless given: {','.join(CASES)}",
    )
    parser.add_argument("--repetitions", type=int, default=5, help="%(default)s unless given")
    parser.add_argument("--warm-up-s", type=float, default=1.0, help="%(default)s unless given")
    parser.add_argument("--measured-s", type=float, default=5.0, help="%(default)s unless given")
    parser.add_argument("--out", type=Path, default=RESULTS / "runs.jsonl", help="%(default)s unless given")
    parser.add_argument("--resume", action="store_true", help="keep what the file has and measure what it lacks")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    if arguments.repetitions < 1 or arguments.measured_s <= 0.0 or arguments.warm_up_s < 0.0:
        parser.error("--repetitions and --measured-s must be above 0, --warm-up-s not below")
    return arguments


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
