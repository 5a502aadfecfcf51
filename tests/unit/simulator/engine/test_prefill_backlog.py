"""What a router without knowledge of the engine believes of a prefill worker: work sent and not yet answered."""

from __future__ import annotations

import numpy as np

from dolphin_router.contract import Split
from dolphin_sim.hardware import load_profile
from dolphin_sim.policy import always_local, always_remote
from dolphin_sim.simulation import Cluster, Simulation
from dolphin_sim.workloads import workload_by_name

REQUESTS = workload_by_name("arxiv").episode(rate_per_s=0.1, duration_s=60.0, seed=0, part="train").slice(0, 1)


def backlog_tokens(simulation: Simulation) -> list[int]:
    return [int(tokens) for tokens in simulation.engine.workers["dispatched_tokens"]]


def test_a_remote_prefill_counts_until_the_prefill_worker_is_done_with_it() -> None:
    # A transfer that takes minutes: it must not look like prefill work.
    slow = load_profile("h20x4-72b").replaced(link_gb_per_s=0.01)
    simulation = Simulation(Cluster(slow, Split(prefill=1, decode=1)), always_remote(), block_tokens=64)
    simulation.offer(REQUESTS)
    arrival_s, prompt = float(REQUESTS.arrival_s[0]), int(REQUESTS.prompt_tokens[0])
    simulation.advance(arrival_s + 0.01)
    assert backlog_tokens(simulation) == [prompt, 0]
    simulation.advance(arrival_s + 20.0)
    assert backlog_tokens(simulation) == [0, 0]
    assert np.isinf(simulation.outcomes().first_token_s[0])


def test_a_local_prefill_counts_until_the_first_token() -> None:
    simulation = Simulation(
        Cluster(load_profile("h20x4-72b"), Split(prefill=1, decode=1)), always_local(), block_tokens=64
    )
    simulation.offer(REQUESTS)
    arrival_s, prompt = float(REQUESTS.arrival_s[0]), int(REQUESTS.prompt_tokens[0])
    simulation.advance(arrival_s + 0.01)
    assert backlog_tokens(simulation) == [0, prompt]
    simulation.advance()
    assert backlog_tokens(simulation) == [0, 0]
