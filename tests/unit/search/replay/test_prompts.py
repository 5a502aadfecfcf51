"""Prompts share prefixes exactly as the requests do that they are made for."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolphin_search.replay.prompts import END_ID, FIRST_ID, PromptTokens
from dolphin_sim.workloads import WORKLOAD_NAMES, workload_by_name
from dolphin_sim.workloads.requests import Requests, offsets_of

BLOCK_TOKENS = 16


def _requests(prompts: list[tuple[list[int], int]]) -> Requests:
    """Requests whose blocks are named by the path of small numbers to them, with so many tokens after the last."""
    names: dict[tuple[int, ...], int] = {}
    ids = [
        [names.setdefault(tuple(path[: place + 1]), len(names)) for place in range(len(path))] for path, _ in prompts
    ]
    counts = np.array([len(each) for each in ids], dtype=np.int64)
    return Requests.without_inputs(
        arrival_s=np.arange(len(prompts), dtype=np.float64),
        prompt_tokens=counts * BLOCK_TOKENS + np.array([rest for _, rest in prompts], dtype=np.int64),
        output_tokens=np.ones(len(prompts), dtype=np.int64),
        block_offsets=offsets_of(counts),
        block_ids=np.array([each for row in ids for each in row], dtype=np.int64),
        block_tokens=BLOCK_TOKENS,
        component_name="test",
    ).check()


def _common(first: list[int], second: list[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


PATHS = st.lists(st.integers(0, 2), max_size=5)
PROMPTS = st.lists(st.tuples(PATHS, st.integers(1, BLOCK_TOKENS - 1)), min_size=2, max_size=6)


@settings(deadline=None)
@given(PROMPTS, st.integers(0, 5))
def test_prompts_begin_alike_for_exactly_as_many_blocks_as_the_requests_do(
    prompts: list[tuple[list[int], int]], salt: int
) -> None:
    tokens = PromptTokens(_requests(prompts), salt=salt)
    ids = [tokens.ids(row).tolist() for row in range(len(prompts))]
    for a, (first, _) in enumerate(prompts):
        for b, (second, _) in enumerate(prompts[:a]):
            shared = _common(first, second)
            assert _common(ids[a], ids[b]) // BLOCK_TOKENS == shared
            # What follows differs from its first token on, up to a chance of one in 22,000 a token.
            assert _common(ids[a], ids[b]) - shared * BLOCK_TOKENS <= 2


@pytest.mark.parametrize("name", WORKLOAD_NAMES)
def test_prompts_have_the_lengths_of_the_workload_and_ids_that_every_model_has(name: str) -> None:
    requests = workload_by_name(name).episode(rate_per_s=1.0, duration_s=30.0, seed=3, part="test")
    tokens = PromptTokens(requests)
    for row in range(len(requests)):
        ids = tokens.ids(row)
        assert len(ids) == requests.prompt_tokens[row]
        assert ids.min() >= FIRST_ID
        assert ids.max() < END_ID
        assert json.loads(tokens.json(row)) == ids.tolist()


def test_equal_requests_make_equal_prompts_and_another_salt_others() -> None:
    requests = _requests([([0, 1], 3), ([0, 2], 5)])
    assert PromptTokens(requests).json(0) == PromptTokens(requests).json(0)
    assert _common(PromptTokens(requests).ids(0).tolist(), PromptTokens(requests, salt=1).ids(0).tolist()) <= 2
