"""Figures of requests: reuse as a cache that forgets nothing would see it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolphin_sim.workloads import Requests, describe, reuse_with_endless_cache, workload_by_name
from dolphin_sim.workloads.statistics import cached_tokens_with_endless_cache

WORKLOAD = workload_by_name("hybrid")


def cached_block_by_block(requests: Requests) -> list[int]:
    seen: set[int] = set()
    cached = []
    for row in range(len(requests)):
        ids = requests.block_ids[requests.block_offsets[row] : requests.block_offsets[row + 1]].tolist()
        hits = 0
        while hits < len(ids) and ids[hits] in seen:
            hits += 1
        cached.append(hits * requests.block_tokens)
        seen.update(ids)
    return cached


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(["leval", "hybrid", "chat", "agent"]), st.integers(0, 1000))
def test_cached_tokens_are_those_of_a_cache_that_looks_block_by_block(name: str, seed: int) -> None:
    requests = workload_by_name(name).episode(rate_per_s=1.0, duration_s=60.0, seed=seed, part="train")
    assert cached_tokens_with_endless_cache(requests).tolist() == cached_block_by_block(requests)


def test_reuse_can_be_counted_over_some_requests_only() -> None:
    requests = WORKLOAD.episode(rate_per_s=1.0, duration_s=500.0, seed=1, part="train")
    counted = requests.arrival_s >= 250
    cached = np.array(cached_block_by_block(requests))
    expected = cached[counted].sum() / requests.prompt_tokens[counted].sum()
    assert reuse_with_endless_cache(requests, counted=counted) == pytest.approx(expected)


def test_a_description_has_the_figures_of_the_columns() -> None:
    requests = WORKLOAD.episode(rate_per_s=1.0, duration_s=500.0, seed=1, part="train")
    figures = describe(requests)
    assert figures.requests == len(requests)
    assert figures.span_s == pytest.approx(500, rel=0.05)
    assert figures.rate_per_s == pytest.approx(len(requests) / 500, rel=0.05)
    assert figures.prompt_tokens.mean == pytest.approx(requests.prompt_tokens.mean())
    assert figures.output_tokens.p90 == pytest.approx(np.percentile(requests.output_tokens, 90))
    assert figures.component_shares.keys() == {"arxiv", "leval", "humaneval"}
    assert sum(figures.component_shares.values()) == pytest.approx(1.0)


def test_no_requests_have_a_description_of_zeros() -> None:
    figures = describe(Requests.empty(block_tokens=64, component_names=("x",)))
    assert (figures.requests, figures.rate_per_s, figures.reuse, figures.prompt_tokens.p99) == (0, 0.0, 0.0, 0.0)
    assert figures.component_shares == {"x": 0.0}
