"""The prefix cache against a plain one, and what a cache of chains must keep to."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolphin_router.contract import Split
from dolphin_sim import policy
from dolphin_sim.engine.prefix_cache import empty_cache, evict_oldest, find, hold, insert, let_go, remember
from dolphin_sim.engine.state import NONE, BlockCache
from dolphin_sim.hardware import load_profile
from dolphin_sim.simulation import Cluster, Simulation
from dolphin_sim.workloads import Requests, workload_by_name

ENTRIES = 5
WORKER = 1


class PlainCache:
    """What the cache is to be: references by block, and the idle blocks from the oldest to the newest."""

    def __init__(self) -> None:
        self.references: dict[int, int] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()

    def take(self, block: int) -> None:
        if block not in self.references:
            if len(self.references) == ENTRIES:
                if not self.idle:
                    return
                self.evict()
            self.references[block] = 0
        self.idle.pop(block, None)
        self.references[block] += 1

    def let_go(self, block: int) -> None:
        self.references[block] -= 1
        if self.references[block] == 0:
            self.idle[block] = None

    def remember(self, block: int) -> None:
        if block in self.idle:
            self.idle.move_to_end(block)
            return
        self.take(block)
        self.let_go(block)

    def evict(self) -> int:
        block, _ = self.idle.popitem(last=False)
        del self.references[block]
        return block


def take(cache: BlockCache, block: int) -> None:
    entry = find(cache, WORKER, block)
    if entry != NONE:
        hold(cache, WORKER, entry)
        return
    if cache.rows[WORKER].resident == ENTRIES:
        if cache.rows[WORKER].idle == 0:
            return
        evict_oldest(cache, WORKER)
    insert(cache, WORKER, block)


# Blocks 3 and 35 fall into one bucket, as do 4 and 36.
operations = st.lists(
    st.tuples(st.sampled_from(["take", "let go", "remember", "evict"]), st.sampled_from([1, 2, 3, 4, 35, 36, 67, 99]))
)


@settings(deadline=None, max_examples=200)
@given(operations)
def test_the_cache_does_what_a_plain_one_does(steps: list[tuple[str, int]]) -> None:
    cache = empty_cache(2, ENTRIES)
    plain = PlainCache()
    for operation, block in steps:
        if operation == "take":
            take(cache, block)
            plain.take(block)
        elif operation == "let go" and plain.references.get(block, 0) > 0:
            let_go(cache, WORKER, find(cache, WORKER, block))
            plain.let_go(block)
        elif operation == "remember" and plain.references.get(block, 0) == 0 and len(plain.idle) > 0:
            remember(cache, WORKER, block)
            plain.remember(block)
        elif operation == "evict" and plain.idle:
            assert evict_oldest(cache, WORKER) == plain.evict()
        assert resident_blocks(cache, WORKER) == set(plain.references)
        assert cache.rows[WORKER].resident == len(plain.references)
        assert cache.rows[WORKER].idle == len(plain.idle)
        for held, count in plain.references.items():
            assert cache.entries[WORKER, find(cache, WORKER, held)].references == count
    # The other worker's cache is another one.
    assert cache.rows[0].resident == 0


@pytest.mark.parametrize("host_tier_tokens", [0, 200_000])
@pytest.mark.parametrize("rule", [policy.always_local(), policy.random_path()], ids=lambda rule: rule.name)
def test_what_eviction_leaves_of_a_prompt_is_its_beginning(rule: policy.Policy, host_tier_tokens: int) -> None:
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
