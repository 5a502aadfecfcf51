"""What must hold on any cluster, on clusters drawn at random: little memory, small steps, slow links, host tiers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dolphin_router.contract import Split
from dolphin_sim import policy
from dolphin_sim.engine.state import NONE
from dolphin_sim.hardware import load_profile
from dolphin_sim.outcomes import Outcomes
from dolphin_sim.policy import Policy
from dolphin_sim.simulation import Cluster, Simulation
from dolphin_sim.workloads import Requests, workload_by_name

H20 = load_profile("h20x4-72b")
RULES = [make() for make in policy.RULES.values()]
RULES += [policy.by_length(1_000), policy.by_effective_length(1_000), policy.by_cost(0.3)]
WINDOW_S = 80.0
SEEDS = range(60)


def drawn(seed: int) -> tuple[Cluster, Requests, Policy]:
    random = np.random.default_rng(seed)
    profile = H20.replaced(
        kv_capacity_tokens=int(random.choice([3_000, 6_000, 20_000, 40_000, 90_000, 550_000])),
        host_tier_tokens=int(random.choice([0, 30, 5_000, 200_000])),
        link_gb_per_s=float(random.choice([0.5, 39.0])),
        max_running=int(random.choice([2, 8, 256])),
        decode_step_tokens=int(random.choice([4, 64, 2_048])),
        prefill_step_tokens=int(random.choice([300, 8_192])),
        transfer_overhead_ms=float(random.choice([0.0, 10.0])),
    )
    split = Split(prefill=int(random.integers(1, 4)), decode=int(random.integers(1, 4)))
    workload = workload_by_name(str(random.choice(["hybrid", "leval", "humaneval", "chat", "agent"])))
    rate_per_s = 15.0 if workload.name == "humaneval" else float(random.choice([0.3, 1.0, 2.0]))
    requests = workload.episode(rate_per_s=rate_per_s, duration_s=WINDOW_S, seed=seed, part="train")
    return Cluster(profile, split), requests, RULES[seed % len(RULES)]


def started(seed: int) -> tuple[Simulation, Requests]:
    cluster, requests, rule = drawn(seed)
    return Simulation(cluster, rule, block_tokens=requests.block_tokens, seed=seed), requests


@pytest.mark.parametrize("seed", SEEDS)
def test_every_request_ends_once_and_leaves_nothing_behind(seed: int) -> None:
    simulation, requests = started(seed)
    capacity = simulation.cluster.profile.kv_capacity_tokens
    simulation.offer(requests)
    simulation.advance()
    outcomes = simulation.outcomes()
    fits = requests.prompt_tokens + requests.output_tokens <= capacity
    assert np.array_equal(outcomes.is_finished, fits)
    assert np.array_equal(outcomes.is_rejected, ~fits)
    served = outcomes.select(fits)
    assert np.all(served.arrival_s < served.first_token_s)
    assert np.all(served.first_token_s <= served.finish_s)
    assert np.all(served.reused_tokens < served.prompt_tokens + served.output_tokens)
    engine = simulation.engine
    assert np.all(np.isinf(engine.workers["step_end_s"]))
    assert np.all(engine.queues == NONE)
    for name in (
        "running_count",
        "prefilling_count",
        "context_tokens",
        "private_tokens",
        "sending",
        "queue_tokens",
        "queue_s",
        "dispatched_tokens",
        "assigned_tokens",
    ):
        assert not engine.workers[name].any(), name
    assert np.array_equal(engine.hbm.rows["idle"], engine.hbm.rows["resident"])
    assert np.all(engine.hbm.rows["resident"] * requests.block_tokens <= capacity)
    if not served.preemptions.any():
        assert engine.workers["computed_tokens"].sum() == (served.prompt_tokens - served.reused_tokens).sum()


@pytest.mark.parametrize("seed", SEEDS)
def test_offering_in_batches_and_collecting_equals_one_run(seed: int) -> None:
    whole, requests = started(seed)
    whole.offer(requests)
    whole.advance()
    parts, _ = started(seed)
    collected = []
    # Short batches, so that most cuts fall into steps, runs of decode steps and transfers.
    for start_s, stop_s in itertools.pairwise(np.arange(0.0, WINDOW_S + 3.0, 3.0)):
        parts.offer(requests.between(start_s, stop_s))
        parts.advance(stop_s - 1e-9)
        collected.append(parts.collect())
    parts.advance()
    collected.append(parts.collect())
    together = Outcomes.concatenate(collected)
    order = np.argsort(together.index)
    for name, column in vars(whole.outcomes()).items():
        assert np.array_equal(getattr(together, name)[order], column), name
    assert len(parts.engine.requests) == len(parts.engine.block_ids) == len(parts.engine.transfers) == 0


def test_the_clusters_drawn_cover_preemption_rejection_and_reuse() -> None:
    seen = {"preemptions": 0, "rejections": 0, "reuse": 0, "remote": 0}
    for seed in SEEDS:
        simulation, requests = started(seed)
        simulation.offer(requests)
        simulation.advance()
        outcomes = simulation.outcomes()
        seen["preemptions"] += bool(outcomes.preemptions.any())
        seen["rejections"] += bool(outcomes.is_rejected.any())
        seen["reuse"] += bool(outcomes.reused_tokens.any())
        seen["remote"] += bool(outcomes.path.any())
    assert all(count >= 5 for count in seen.values()), seen


def test_equal_seeds_give_equal_outcomes_and_others_differ() -> None:
    cluster = Cluster(H20, Split(prefill=2, decode=2))
    requests = workload_by_name("hybrid").episode(rate_per_s=1.0, duration_s=WINDOW_S, seed=0, part="train")

    def paths(seed: int) -> list[int]:
        simulation = Simulation(cluster, policy.random_path(), block_tokens=requests.block_tokens, seed=seed)
        simulation.offer(requests)
        simulation.advance()
        path: list[int] = simulation.outcomes().path.tolist()
        return path

    assert paths(1) == paths(1)
    assert paths(1) != paths(2)
