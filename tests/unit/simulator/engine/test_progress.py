"""A worker with something to do does it, however little memory and however few places it has."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dolphin_router.contract import Split
from dolphin_sim import policy
from dolphin_sim.hardware import load_profile
from dolphin_sim.simulation import Cluster, Simulation, simulate
from dolphin_sim.workloads import Requests

H20 = load_profile("h20x4-72b")


@pytest.mark.parametrize("max_running", [1, 2, 3])
@pytest.mark.parametrize("rule", [policy.always_remote(), policy.random_path()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("seed", range(20))
def test_all_requests_finish_with_few_places_and_little_memory(
    prompts: Callable[..., Requests], max_running: int, rule: policy.Policy, seed: int
) -> None:
    random = np.random.default_rng(seed)
    capacity = int(random.integers(1_500, 6_000))
    requests = prompts(
        random.integers(10, capacity // 2, 40).tolist(),
        np.sort(random.uniform(0.0, 60.0, 40)).tolist(),
        output_tokens=random.integers(1, capacity // 3, 40).tolist(),
    )
    profile = H20.replaced(kv_capacity_tokens=capacity, max_running=max_running)
    outcomes = simulate(Cluster(profile, Split(prefill=2, decode=1)), requests, rule, seed=seed)
    assert outcomes.is_finished.all()


def test_a_worker_that_gave_up_its_only_request_takes_up_the_next(prompts: Callable[..., Requests]) -> None:
    # One place. The first grows by 500 tokens; beside it there is room for the second prompt and 200 more, so the first
    # has to give way while the second, which has arrived, waits for the place.
    profile = H20.replaced(kv_capacity_tokens=1_200, max_running=1)
    requests = prompts([500, 500], [0.0, 0.0], output_tokens=[500, 100])
    simulation = Simulation(Cluster(profile, Split(prefill=2, decode=1)), policy.always_remote(), block_tokens=64)
    simulation.offer(requests)
    simulation.advance()
    outcomes = simulation.outcomes()
    assert outcomes.is_finished.all()
    assert outcomes.preemptions.tolist() == [1, 0]
    assert outcomes.finish_s[1] < outcomes.finish_s[0]
