"""list the workloads, or describe one"""

from __future__ import annotations

import argparse

from dolphin_sim.cli import values
from dolphin_sim.cli.problem_arguments import ArgumentError
from dolphin_sim.workloads import (
    WORKLOAD_NAMES,
    Description,
    TraceWorkload,
    Workload,
    describe,
    workload_by_name,
)

NAME = "workloads"

# A generator has no end. An hour at one request a second gives percentiles that hold to a few per cent.
_WINDOW_S = 3600.0
_RATE_PER_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--describe",
        metavar="NAME|FILE",
        help="lengths, reuse and parts of a workload: of a whole trace, or of an hour of a generator at one request a "
        "second",
    )
    parser.add_argument("--seed", metavar="N", type=values.seed, default=0, help="(default: %(default)s)")
    parser.add_argument(
        "--truncated-ok", action="store_true", help="leave out the last line of a trace when it was cut off"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the names, or one workload's figures; return the exit code."""
    if arguments.describe is None:
        print("\n".join(WORKLOAD_NAMES))
        return 0
    try:
        workload = workload_by_name(arguments.describe, truncated_ok=arguments.truncated_ok)
    except (OSError, ValueError) as error:
        raise ArgumentError(f"argument --describe: {error}") from error
    print(description_text(workload.name, _description(workload, seed=arguments.seed)))
    return 0


def description_text(name: str, description: Description) -> str:
    """Return the figures as lines to read."""
    lines = [
        f"{name}: {description.requests} requests in {description.span_s:,.0f} s, {description.rate_per_s:.3g}/s",
        f"{'tokens':<8}{'mean':>10}{'P10':>10}{'P50':>10}{'P90':>10}{'P99':>10}",
    ]
    for title, figures in (("prompt", description.prompt_tokens), ("output", description.output_tokens)):
        columns = (figures.mean, figures.p10, figures.p50, figures.p90, figures.p99)
        lines.append(f"{title:<8}" + "".join(f"{value:>10,.0f}" for value in columns))
    lines.append(f"reuse   {description.reuse:.1%} of prompt tokens, with one cache that forgets nothing")
    shares = ", ".join(f"{part} {share:.1%}" for part, share in description.component_shares.items())
    lines.append(f"parts   {shares}")
    return "\n".join(lines)


def _description(workload: Workload, *, seed: int) -> Description:
    if isinstance(workload, TraceWorkload):
        return describe(workload.requests)
    return describe(workload.episode(rate_per_s=_RATE_PER_S, duration_s=_WINDOW_S, seed=seed, part="test"))
