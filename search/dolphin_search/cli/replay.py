"""send a workload's requests to a running server when they are due, and measure the answers"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from dolphin_router.cli.wording import slo_text
from dolphin_search.console import progress_console, result_console
from dolphin_search.progress import progress
from dolphin_search.replay.generator import Replay, run_replays
from dolphin_search.replay.result import DEFAULT_LAG_LIMIT_MS, ReplayResult, result_document
from dolphin_search.replay.schedule import Address, Schedule
from dolphin_search.replay.wording import result_lines
from dolphin_search.report.document import write_json
from dolphin_sim.cli import values
from dolphin_sim.cli.command import FAILURE
from dolphin_sim.cli.problem_arguments import DEFAULT_WORKLOAD, ArgumentError, add_slo_arguments, slo_from_arguments
from dolphin_sim.cli.result_arguments import check_result_files
from dolphin_sim.workloads import workload_by_name
from dolphin_sim.workloads.requests import Requests

NAME = "replay"

_ROOM = 1.5
"""How much longer than on average so many requests may take to arrive."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--url", required=True, type=_address, help="an OpenAI-compatible server, http://127.0.0.1:8080 for instance"
    )
    parser.add_argument("--model", default="emulated", metavar="NAME", help="(default: %(default)s)")
    traffic = parser.add_argument_group("traffic, drawn as the simulator draws it")
    traffic.add_argument(
        "--workload",
        metavar="NAME|FILE",
        default=DEFAULT_WORKLOAD,
        help="a name that `dolphin-sim workloads` lists, a trace, or recorded requests (default: %(default)s)",
    )
    traffic.add_argument(
        "--truncated-ok", action="store_true", help="leave out the last line of a trace when it was cut off"
    )
    traffic.add_argument("--arrival", choices=("poisson", "bursty", "trace"), help="(default: as recorded, or poisson)")
    traffic.add_argument(
        "--rate", metavar="PER_S", type=values.positive_number, required=True, help="mean requests a second"
    )
    traffic.add_argument("--seed", metavar="N", type=values.seed, default=0, help="(default: %(default)s)")
    length = traffic.add_mutually_exclusive_group(required=True)
    length.add_argument("--duration", metavar="S", type=values.positive_number, help="seconds in which they arrive")
    length.add_argument("--requests", metavar="N", type=values.count, help="or how many")
    traffic.add_argument(
        "--settle-s",
        metavar="S",
        type=values.number_from_0,
        default=0.0,
        help="seconds at the beginning whose requests are not scored (default: %(default)g)",
    )
    traffic.add_argument(
        "--salt",
        metavar="N",
        type=values.seed,
        default=0,
        help="another one gives prompts of the same structure that no cache holds yet (default: %(default)s)",
    )
    traffic.add_argument(
        "--time-scale",
        metavar="X",
        type=values.positive_number,
        default=1.0,
        help="the workload's seconds in a second, as of emulated engines; all times are told in the workload's "
        "(default: %(default)g)",
    )
    add_slo_arguments(parser)
    result = parser.add_argument_group("result")
    result.add_argument(
        "--grace-s",
        metavar="S",
        type=values.number_from_0,
        default=60.0,
        help="the workload's seconds that answers may take after the last request (default: %(default)g)",
    )
    result.add_argument(
        "--lag-limit-ms",
        metavar="MS",
        type=values.positive_number,
        default=DEFAULT_LAG_LIMIT_MS,
        help="of the workload's time; the result is void when more than one of 100 requests is sent later than this "
        "after it was due (default: %(default)g)",
    )
    result.add_argument("--json", metavar="FILE", type=Path, help="where the result goes as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Replay, and return the exit code: 1 where the result is void, or no request was answered."""
    check_result_files(json=arguments.json)
    requests = _requests(arguments)
    is_scored = requests.arrival_s >= arguments.settle_s
    if not is_scored.any():
        raise ArgumentError("argument --settle-s: no request arrives after it")
    schedule = Schedule(requests, time_scale=arguments.time_scale, model=arguments.model, salt=arguments.salt)
    with progress(progress_console(), "requests", len(requests)) as step:
        replay = Replay(schedule, arguments.url, np.ones(len(requests), dtype=np.bool_))
        [answers] = run_replays([replay], grace_s=arguments.grace_s / arguments.time_scale, on_end=lambda _: step())
    slo = slo_from_arguments(arguments)
    result = ReplayResult(requests, is_scored, answers, arguments.time_scale, slo, arguments.lag_limit_ms)
    console = result_console()
    console.print(f"Promise: {slo_text(slo)}", highlight=False, markup=False)
    for line in result_lines(result):
        console.print(line, highlight=False, markup=False)
    if arguments.json is not None:
        write_json(arguments.json, result_document(result))
    return FAILURE if result.is_void or not result.is_answered else 0


def _requests(arguments: argparse.Namespace) -> Requests:
    try:
        workload = workload_by_name(arguments.workload, arrival=arguments.arrival, truncated_ok=arguments.truncated_ok)
    except (OSError, ValueError) as error:
        raise ArgumentError(f"argument --workload: {error}") from error
    count = arguments.requests
    duration_s = arguments.duration or arguments.settle_s + _ROOM * (count + 10) / arguments.rate
    requests = workload.episode(rate_per_s=arguments.rate, duration_s=duration_s, seed=arguments.seed, part="test")
    if count is None:
        return requests
    if len(requests) < count:
        raise ArgumentError(f"argument --requests: {workload.name} has only {len(requests)} at this rate")
    return requests.slice(0, count)


def _address(text: str) -> Address:
    try:
        return Address.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
