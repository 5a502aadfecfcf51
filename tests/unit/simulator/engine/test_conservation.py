"""Nothing is lost, nothing is counted twice, and the way of running does not matter."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from dolphin_router import assignment, candidates
from dolphin_router.contract import Split
from dolphin_sim import policy
from dolphin_sim.engine import routing
from dolphin_sim.hardware import HardwareProfile, load_profile
from dolphin_sim.outcomes import Outcomes
from dolphin_sim.policy import Policy
from dolphin_sim.simulation import Cluster, Simulation, simulate
from dolphin_sim.workloads import workload_by_name

H20 = load_profile("h20x4-72b")
PROFILES = {
    "default": H20,
    "tiny memory": H20.replaced(kv_capacity_tokens=40_000),
    "tiny memory, host tier": H20.replaced(kv_capacity_tokens=40_000, host_tier_tokens=200_000),
    "slow link": H20.replaced(link_gb_per_s=1.0),
}
POLICIES = [policy.always_local(), policy.always_remote(), policy.random_path(), policy.by_cost(0.3)]
HYBRID = workload_by_name("hybrid")


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES.keys())
@pytest.mark.parametrize("split", ["1P1D", "2P2D", "3P1D"])
@pytest.mark.parametrize("rule", POLICIES, ids=lambda rule: rule.name)
def test_every_request_ends_once_and_leaves_nothing_behind(profile: HardwareProfile, split: str, rule: Policy) -> None:
    requests = HYBRID.episode(rate_per_s=1.0, duration_s=200.0, seed=3, part="train")
    simulation = Simulation(Cluster(profile, Split.parse(split)), rule, block_tokens=64)
    simulation.offer(requests)
    simulation.advance()
    outcomes = simulation.outcomes()
    assert np.all(outcomes.is_finished != outcomes.is_rejected)
    fits = requests.prompt_tokens + requests.output_tokens <= profile.kv_capacity_tokens
    assert np.array_equal(outcomes.is_finished, fits)
    served = outcomes.select(outcomes.is_finished)
    assert np.all(served.arrival_s <= served.first_token_s)
    assert np.all(served.first_token_s <= served.finish_s)
    engine = simulation.engine
    for name in ("private_tokens", "queue_tokens", "assigned_tokens", "dispatched_tokens", "sending", "context_tokens"):
        assert not engine.workers[name].any(), name
    assert np.all(np.isinf(engine.workers["step_end_s"]))
    assert np.array_equal(engine.hbm.rows["idle"], engine.hbm.rows["resident"])
    assert np.all(engine.hbm.rows["resident"] * 64 <= profile.kv_capacity_tokens)
    if not served.preemptions.any():
        computed = served.prompt_tokens - served.reused_tokens
        assert engine.workers["computed_tokens"].sum() == computed.sum()


def test_tiny_memory_makes_requests_give_way_and_come_back() -> None:
    requests = workload_by_name("humaneval").episode(rate_per_s=20.0, duration_s=30.0, seed=1, part="train")
    cluster = Cluster(H20.replaced(kv_capacity_tokens=6_000), Split(prefill=1, decode=1))
    outcomes = simulate(cluster, requests, policy.always_local())
    assert outcomes.preemptions.sum() > 0
    assert outcomes.is_finished.all()


@pytest.mark.parametrize("rule", POLICIES, ids=lambda rule: rule.name)
def test_offering_in_batches_and_collecting_equals_one_run(rule: Policy) -> None:
    cluster = Cluster(H20, Split(prefill=2, decode=2))
    batches = [batch for batch, _ in zip(HYBRID.stream(rate_per_s=1.0, seed=2, batch_s=50.0), range(12), strict=False)]
    whole = Simulation(cluster, rule, block_tokens=64)
    for batch in batches:
        whole.offer(batch)
    whole.advance()
    parts = Simulation(cluster, rule, block_tokens=64)
    collected, lengths = [], []
    for number, batch in enumerate(batches, 1):
        parts.offer(batch)
        parts.advance(50.0 * number - 1e-9)
        collected.append(parts.collect())
        lengths.append(len(parts.engine.block_ids))
    parts.advance()
    collected.append(parts.collect())
    assert_same(in_order(Outcomes.concatenate(collected)), in_order(whole.outcomes()))


def test_memory_does_not_grow_with_simulated_time() -> None:
    simulation = Simulation(Cluster(H20, Split(prefill=2, decode=2)), policy.always_remote(), block_tokens=64)
    held = []
    for number, batch in enumerate(HYBRID.stream(rate_per_s=0.7, seed=2, batch_s=200.0), 1):
        simulation.offer(batch)
        simulation.advance(200.0 * number - 1e-9)
        simulation.collect()
        held.append(len(simulation.engine.block_ids) + len(simulation.engine.requests))
        if number == 60:
            break
    assert max(held[30:]) < 3 * max(held[:30])


@pytest.mark.parametrize("rule", POLICIES, ids=lambda rule: rule.name)
def test_more_load_and_fewer_workers_are_never_better(rule: Policy) -> None:
    def p90_ms(split: str, rate_per_s: float) -> float:
        requests = HYBRID.episode(rate_per_s=rate_per_s, duration_s=1_500.0, seed=7, part="train")
        return float(np.percentile(simulate(Cluster(H20, Split.parse(split)), requests, rule).ttft_ms, 90))

    # Other arrivals at another rate: differences below a tenth are noise.
    assert p90_ms("2P2D", 0.5) <= 1.1 * p90_ms("2P2D", 1.0)
    assert p90_ms("2P2D", 1.0) <= 1.1 * p90_ms("2P2D", 1.5)
    assert p90_ms("3P3D", 1.0) <= 1.1 * p90_ms("2P2D", 1.0)


def test_the_router_and_the_simulator_run_the_same_code() -> None:
    pairs = {
        routing.nearest_centre: assignment.nearest_centre,
        routing.likeliest_component: assignment.likeliest_component,
        routing.choose_prefill_worker: candidates.choose_prefill_worker,
        routing.choose_decode_worker: candidates.choose_decode_worker,
    }
    for compiled, plain in pairs.items():
        assert getattr(compiled, "py_func", compiled) is plain


PROGRAM = """
import hashlib, numpy as np
from dolphin_router.contract import Split
from dolphin_sim import policy
from dolphin_sim.engine import routing
from dolphin_sim.hardware import load_profile
from dolphin_sim.simulation import Cluster, simulate
from dolphin_sim.workloads import workload_by_name
random = np.random.default_rng(0)
transform = np.array([[8.0, 7.0, 7.0, 4.5], [2.0, 2.0, 2.0, 1.0]])
clusters = random.normal(size=(8, 15))
actions = np.array([1, 0, 1, 0, 1, 0, 1, 0])
tables = [
    policy.Policy(str(kind), routing.Decider(kind, 0, np.zeros(4), transform, clusters, actions))
    for kind in (routing.BITS_BY_CENTRE, routing.BITS_BY_MIXTURE)
]
rules = [make() for make in policy.RULES.values()]
rules += [policy.by_length(1000), policy.by_effective_length(1000), policy.by_cost(0.3), *tables]
requests = workload_by_name("hybrid").episode(rate_per_s=1.5, duration_s=40.0, seed=1, part="train")
profile = load_profile("h20x4-72b").replaced(kv_capacity_tokens=90_000, host_tier_tokens=100_000)
for rule in rules:
    expected = np.full(len(requests), 200.0)
    o = simulate(Cluster(profile, Split(prefill=2, decode=1)), requests, rule, expected_output_tokens=expected)
    columns = (o.first_token_s, o.finish_s, o.path, o.cluster, o.reused_tokens, o.shipped_tokens, o.preemptions)
    print(rule.name, hashlib.sha256(b"".join(np.ascontiguousarray(column).tobytes() for column in columns)).hexdigest())
"""


@pytest.mark.slow
def test_results_are_the_same_to_the_last_bit_without_compilation() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "NUMBA_DISABLE_JIT": disabled},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout
        for disabled in ("0", "1")
    ]
    assert outputs[0].count("\n") == 12
    assert outputs[0] == outputs[1]


def in_order(outcomes: Outcomes) -> Outcomes:
    order = np.argsort(outcomes.index)
    return Outcomes(**{name: column[order] for name, column in vars(outcomes).items()})


def assert_same(one: Outcomes, other: Outcomes) -> None:
    for name, column in vars(one).items():
        assert np.array_equal(column, getattr(other, name)), name
