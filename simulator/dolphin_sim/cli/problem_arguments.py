"""The arguments that name a problem: the same for every command that simulates."""

from __future__ import annotations

import argparse
import json
from typing import get_args

from dolphin_router.contract import Slo, SloKind, Split
from dolphin_sim.cli import values
from dolphin_sim.episode import Window
from dolphin_sim.hardware import HardwareProfile, load_profile
from dolphin_sim.problem import Problem
from dolphin_sim.simulation import Cluster
from dolphin_sim.workloads import TooManyRequests, Workload, check_arrivals, workload_by_name

DEFAULT_PROFILE = "h20x4-72b"
DEFAULT_SPLIT = Split(prefill=2, decode=2)
DEFAULT_WORKLOAD = "hybrid"
DEFAULT_SLO = Slo(kind="both", ttft_ms=8000.0, ttft_us_per_prompt_token=0.0, tpot_ms=20.0)

# Requests a second at which the path of a request matters: the queues are long, and the best static table still keeps
# most promises. Known for the default hardware and workload alone.
DEFAULT_RATES_PER_S = {Split(prefill=2, decode=2): 1.03, Split(prefill=3, decode=1): 1.4}

NO_RATE = (
    "argument --rate: give the requests a second; a default is known only for profile "
    f"{DEFAULT_PROFILE}, workload {DEFAULT_WORKLOAD}, split "
    f"{' or '.join(f'{split} ({rate:g})' for split, rate in DEFAULT_RATES_PER_S.items())}"
)
"""What a command says that needs a rate where :func:`problem_from_arguments` returns none."""


class ArgumentError(Exception):
    """An argument, or a file that it names, cannot be used. The message is one line and names the argument."""


def add_problem_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments; each has a default."""
    cluster = parser.add_argument_group("cluster")
    cluster.add_argument(
        "--profile",
        metavar="NAME|FILE",
        default=DEFAULT_PROFILE,
        help="hardware and model of each worker: a name that `dolphin-sim profiles` lists, or a JSON file "
        "(default: %(default)s)",
    )
    cluster.add_argument(
        "--set",
        metavar="FIELD=VALUE",
        dest="overrides",
        action="append",
        default=[],
        help="replace a field of the profile, link_gb_per_s=9.7 for instance; may be given several times",
    )
    cluster.add_argument(
        "--split",
        metavar="nPmD",
        type=values.split,
        default=DEFAULT_SPLIT,
        help="prefill and decode workers (default: %(default)s)",
    )
    _add_traffic_arguments(parser.add_argument_group("traffic"))
    add_slo_arguments(parser)


def problem_from_arguments(arguments: argparse.Namespace) -> Problem:
    """Return the problem that the parsed arguments name.

    Raises:
        ArgumentError: a profile, field or workload cannot be used, or there are too many requests to simulate.
    """
    problem = Problem(
        cluster=Cluster(_profile(arguments.profile, arguments.overrides), arguments.split),
        workload=_workload(arguments),
        slo=slo_from_arguments(arguments),
        rate_per_s=_default_rate_per_s(arguments) if arguments.rate is None else arguments.rate,
        seed=arguments.seed,
        window=Window(period_s=arguments.period_s, settle_s=arguments.settle_s),
    )
    if problem.rate_per_s is not None:
        try:
            check_arrivals(rate_per_s=problem.rate_per_s, duration_s=problem.window.duration_s)
        except TooManyRequests as error:
            raise ArgumentError(f"arguments --rate, --period-s and --settle-s: {error}") from error
    return problem


def add_slo_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that say what latency is promised; each has a default."""
    group = parser.add_argument_group("service-level objective")
    group.add_argument(
        "--slo-kind",
        choices=get_args(SloKind),
        default=DEFAULT_SLO.kind,
        help="both: each limit by itself; end-to-end: TTFT + (output - 1) × TPOT (default: %(default)s)",
    )
    group.add_argument(
        "--ttft-ms",
        metavar="MS",
        type=values.number_from_0,
        default=DEFAULT_SLO.ttft_ms,
        help="limit on the time to first token (default: %(default)g)",
    )
    group.add_argument(
        "--ttft-us-per-prompt-token",
        metavar="US",
        type=values.number_from_0,
        default=DEFAULT_SLO.ttft_us_per_prompt_token,
        help="what each prompt token adds to that limit, in microseconds (default: %(default)g)",
    )
    group.add_argument(
        "--tpot-ms",
        metavar="MS",
        type=values.number_from_0,
        default=DEFAULT_SLO.tpot_ms,
        help="limit on the mean time of each later token (default: %(default)g)",
    )


def slo_from_arguments(arguments: argparse.Namespace) -> Slo:
    """Return the SLO that the parsed arguments name."""
    return Slo(
        kind=arguments.slo_kind,
        ttft_ms=arguments.ttft_ms,
        ttft_us_per_prompt_token=arguments.ttft_us_per_prompt_token,
        tpot_ms=arguments.tpot_ms,
    )


def _add_traffic_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--workload",
        metavar="NAME|FILE",
        default=DEFAULT_WORKLOAD,
        help="a name that `dolphin-sim workloads` lists, or a Mooncake or Azure trace (default: %(default)s)",
    )
    group.add_argument(
        "--truncated-ok", action="store_true", help="leave out the last line of a trace when it was cut off"
    )
    group.add_argument(
        "--arrival",
        choices=("poisson", "bursty", "trace"),
        help="arrival process (default: as recorded for traces, poisson for generators)",
    )
    group.add_argument(
        "--rate",
        metavar="PER_S",
        type=values.positive_number,
        help="mean requests a second; traces are stretched to it (default: "
        + ", ".join(f"{rate:g} for {split}" for split, rate in DEFAULT_RATES_PER_S.items())
        + " with the default profile and workload)",
    )
    group.add_argument(
        "--seed", metavar="N", type=values.seed, default=0, help="of everything random (default: %(default)s)"
    )
    group.add_argument(
        "--period-s",
        metavar="S",
        type=values.positive_number,
        default=Window.period_s,
        help="seconds whose arrivals are scored (default: %(default)g)",
    )
    group.add_argument(
        "--settle-s",
        metavar="S",
        type=values.number_from_0,
        default=Window.settle_s,
        help="seconds before them that fill caches and queues (default: %(default)g)",
    )


def _profile(name_or_path: str, overrides: list[str]) -> HardwareProfile:
    try:
        profile = load_profile(name_or_path)
    except ValueError as error:
        raise ArgumentError(f"argument --profile: {error}") from error
    changes = dict(map(_field_and_value, overrides))
    try:
        return profile.replaced(**changes) if changes else profile
    except ValueError as error:
        raise ArgumentError(f"argument --set: {error}") from error


def _field_and_value(text: str) -> tuple[str, object]:
    field, separator, value = text.partition("=")
    if not separator:
        raise ArgumentError(f"argument --set: {text!r} is not of the form FIELD=VALUE")
    try:
        return field, json.loads(value)
    except ValueError:
        return field, value


def _workload(arguments: argparse.Namespace) -> Workload:
    try:
        return workload_by_name(arguments.workload, arrival=arguments.arrival, truncated_ok=arguments.truncated_ok)
    except (OSError, ValueError) as error:
        raise ArgumentError(f"argument --workload: {error}") from error


def _default_rate_per_s(arguments: argparse.Namespace) -> float | None:
    if (arguments.profile, arguments.workload) != (DEFAULT_PROFILE, DEFAULT_WORKLOAD):
        return None
    return DEFAULT_RATES_PER_S.get(arguments.split)
