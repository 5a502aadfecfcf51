"""What is left of a prompt in a cache that is too small for all."""

from __future__ import annotations

import numpy as np
import pytest

from dolphin_router.contract import Split
from dolphin_sim import policy
from dolphin_sim.engine.state import NONE, BlockCache
from dolphin_sim.hardware import load_profile
from dolphin_sim.simulation import Cluster, Simulation
from dolphin_sim.workloads import Requests, workload_by_name


@pytest.mark.parametrize("host_tier_tokens", [0, 200_000])
@pytest.mark.parametrize("rule", [policy.always_local(), policy.random_path()], ids=lambda rule: rule.name)
def test_prompts_are_forgotten_from_their_end(rule: policy.Policy, host_tier_tokens: int) -> None:
    profile = load_profile("h20x4-72b").replaced(kv_capacity_tokens=60_000, host_tier_tokens=host_tier_tokens)
    requests = workload_by_name("leval").episode(rate_per_s=0.6, duration_s=400.0, seed=4, part="train")
    simulation = Simulation(Cluster(profile, Split(prefill=1, decode=2)), rule, block_tokens=requests.block_tokens)
    simulation.offer(requests)
    predecessors = predecessor_of_each_block(requests)
    for until_s in (100.0, 200.0, 300.0, 400.0, np.inf):
        simulation.advance(until_s)
        for worker in range(3):
            resident = resident_blocks(simulation.engine.hbm, worker)
            assert {predecessors[block] for block in resident if block in predecessors} <= resident
    resident = resident_blocks(simulation.engine.hbm, 1)
    assert 0 < len(resident) < len(np.unique(requests.block_ids))


def resident_blocks(cache: BlockCache, worker: int) -> set[int]:
    """Walk the hash table: what cannot be found there is not in the cache."""
    blocks = set()
    for first in cache.bucket[worker]:
        entry = first
        while entry != NONE:
            blocks.add(int(cache.entries[worker, entry].block))
            entry = cache.entries[worker, entry].chained
    return blocks


def predecessor_of_each_block(requests: Requests) -> dict[int, int]:
    """Ids are chained, so a block has one predecessor in all prompts, or none."""
    predecessors = {}
    for start, stop in zip(requests.block_offsets[:-1], requests.block_offsets[1:], strict=True):
        chain = requests.block_ids[start:stop].tolist()
        predecessors.update(zip(chain[1:], chain[:-1], strict=True))
    return predecessors
