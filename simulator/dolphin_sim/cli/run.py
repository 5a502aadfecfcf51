"""simulate one policy and print latencies and attainment"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from dolphin_sim.cli.policy_arguments import add_policy_arguments, policy_from_arguments, with_expected_lengths
from dolphin_sim.cli.problem_arguments import (
    NO_RATE,
    ArgumentError,
    add_problem_arguments,
    problem_from_arguments,
)
from dolphin_sim.cli.result_arguments import check_result_files
from dolphin_sim.cli.run_result import run_document, run_text
from dolphin_sim.episode import make_episode, run_episode
from dolphin_sim.result_file import write_result
from dolphin_sim.simulation import simulate
from dolphin_sim.workloads import Requests

NAME = "run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = (
        "Simulates one period of traffic under one policy, on arrivals that no table is learned on. Cluster, traffic "
        "and SLO are those of the arguments, also for a table that was learned for others."
    )
    add_policy_arguments(parser)
    add_problem_arguments(parser)
    parser.add_argument("--json", metavar="FILE|-", help="the figures as JSON; - prints them instead of the text")


def run(arguments: argparse.Namespace) -> int:
    """Simulate, print, and return the exit code."""
    json_path = None if arguments.json in (None, "-") else Path(arguments.json)
    check_result_files(json=json_path)
    policy, model = policy_from_arguments(arguments)
    problem = problem_from_arguments(arguments)
    if problem.rate_per_s is None:
        raise ArgumentError(NO_RATE)
    episode = make_episode(
        problem.workload, rate_per_s=problem.rate_per_s, window=problem.window, seed=problem.seed, part="test"
    )
    if not episode.is_scored.any():
        raise ArgumentError("arguments --rate and --period-s: no request arrives in the period; raise one of them")
    episode = with_expected_lengths(episode, model)
    # Compiles the engine, or loads it, before the clock is read.
    block_tokens = problem.workload.block_tokens
    simulate(problem.cluster, Requests.empty(block_tokens=block_tokens, component_names=()), policy)
    start_s = time.perf_counter()
    outcomes = run_episode(problem.cluster, episode, policy)
    wall_s = time.perf_counter() - start_s
    document = run_document(problem, policy, outcomes, simulated_s_per_wall_s=problem.window.duration_s / wall_s)
    text = json.dumps(document, indent=2, allow_nan=False)
    if arguments.json == "-":
        print(text)
        return 0
    if json_path is not None:
        write_result(json_path, f"{text}\n".encode())
    print(run_text(document))
    return 0
