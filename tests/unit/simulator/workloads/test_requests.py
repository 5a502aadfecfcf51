"""The column type: slicing keeps the blocks, validation names column and row, the digest sees every column."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolphin_sim.workloads.requests import Requests

BLOCK_TOKENS = 4


def requests_of(prompts: list[tuple[float, list[int], int]]) -> Requests:
    """Requests from (arrival, token ids of the prompt, answer length); block ids are given out by content."""
    ids: dict[tuple[int, ...], int] = {}
    prompts = sorted(prompts, key=lambda prompt: prompt[0])
    blocks = [
        [ids.setdefault(tuple(tokens[:stop]), len(ids)) for stop in range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS)]
        for _, tokens, _ in prompts
    ]
    n = len(prompts)
    return Requests(
        arrival_s=np.array([arrival for arrival, _, _ in prompts], np.float64),
        prompt_tokens=np.array([len(tokens) for _, tokens, _ in prompts], np.int64),
        output_tokens=np.array([output for _, _, output in prompts], np.int64),
        block_offsets=np.cumsum([0, *map(len, blocks)], dtype=np.int64),
        block_ids=np.array([block for row in blocks for block in row], np.int64),
        block_tokens=BLOCK_TOKENS,
        component=np.arange(n, dtype=np.int64) % 2,
        component_names=("even", "odd"),
        max_tokens=np.zeros(n, np.int64),
        turns=np.ones(n, np.int64),
        tools=np.zeros(n, np.int64),
        json_format=np.zeros(n, np.int64),
        system_hash=np.arange(n, dtype=np.int64),
    )


PROMPTS = st.lists(
    st.tuples(
        st.floats(0, 100, allow_subnormal=False),
        st.lists(st.integers(0, 1), min_size=1, max_size=20),
        st.integers(1, 50),
    ),
    max_size=12,
)


def rows_of(requests: Requests) -> list[tuple[Any, ...]]:
    offsets = requests.block_offsets
    return [
        (
            float(requests.arrival_s[row]),
            int(requests.prompt_tokens[row]),
            int(requests.output_tokens[row]),
            requests.component_names[requests.component[row]],
            int(requests.system_hash[row]),
            requests.block_ids[offsets[row] : offsets[row + 1]].tolist(),
        )
        for row in range(len(requests))
    ]


EXAMPLE = requests_of([(0.0, [1] * 9, 3), (1.5, [1] * 8 + [0] * 5, 2), (1.5, [0, 1], 7), (4.0, [1] * 4 + [0] * 8, 1)])


@settings(deadline=None, max_examples=60)
@given(PROMPTS, st.integers(0, 14), st.integers(0, 14))
def test_a_slice_holds_the_same_rows(prompts: list[tuple[float, list[int], int]], start: int, stop: int) -> None:
    requests = requests_of(prompts).check()
    part = requests.slice(start, stop).check()
    assert rows_of(part) == rows_of(requests)[start : max(start, stop)]


@settings(deadline=None, max_examples=60)
@given(PROMPTS, st.randoms(use_true_random=False))
def test_a_mask_and_its_complement_concatenate_to_the_whole(prompts: list[Any], random: Any) -> None:
    requests = requests_of(prompts)
    mask = np.array([random.random() < 0.5 for _ in prompts], np.bool_)
    parts = [requests.select(mask).check(), requests.select(~mask).check()]
    assert rows_of(parts[0]) == [row for row, chosen in zip(rows_of(requests), mask, strict=True) if chosen]
    assert sorted(rows_of(Requests.concatenate(parts).check())) == sorted(rows_of(requests))


def test_concatenating_joins_component_names_by_name() -> None:
    other = replace(EXAMPLE, component_names=("odd", "third")).shifted(0.25)
    joined = Requests.concatenate([EXAMPLE, other]).check()
    assert joined.component_names == ("even", "odd", "third")
    names = [joined.component_names[index] for index in joined.component]
    assert names == ["even", "odd", "odd", "even", "third", "odd", "odd", "third"]


def test_concatenating_needs_parts_with_one_block_size() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Requests.concatenate([])
    with pytest.raises(ValueError, match=r"block_tokens: .* \[4, 8\]"):
        Requests.concatenate([EXAMPLE, Requests.empty(block_tokens=8, component_names=("x",))])


def test_no_requests_are_legal_requests() -> None:
    empty = Requests.empty(block_tokens=64, component_names=("x",)).check()
    assert len(empty) == 0
    assert len(empty.slice(0, 5).check()) == len(empty.select(np.zeros(0, np.bool_)).check()) == 0
    assert len(Requests.concatenate([empty, empty.shifted(3.0)]).with_dense_block_ids().check()) == 0
    assert len(replace(empty, component_names=()).check()) == 0


def test_between_takes_a_half_open_interval() -> None:
    assert EXAMPLE.between(0.0, 1.5).arrival_s.tolist() == [0.0]
    assert EXAMPLE.between(1.5, 4.0).arrival_s.tolist() == [1.5, 1.5]


def test_dense_ids_have_no_gaps_and_the_same_structure() -> None:
    sparse = replace(EXAMPLE, block_ids=EXAMPLE.block_ids * 1000 + 17)
    assert np.array_equal(sparse.with_dense_block_ids().block_ids, EXAMPLE.block_ids)
    assert np.array_equal(sparse.with_dense_block_ids(first_id=5).block_ids, EXAMPLE.block_ids + 5)


def test_the_digest_is_stable_and_sees_every_column() -> None:
    assert EXAMPLE.digest() == replace(EXAMPLE).digest()
    assert Requests.empty(block_tokens=64, component_names=("x",)).digest() == (
        "f155f47c475e6acfb0ac858ccd3fd5beaec8928c61447a49879590eddc73ad33"
    )
    changed = []
    for field in fields(Requests):
        value = getattr(EXAMPLE, field.name)
        other = value + 1 if isinstance(value, np.ndarray | int) else (*value, "more")
        changed.append(replace(EXAMPLE, **{field.name: other}).digest())
    assert len({EXAMPLE.digest(), *changed}) == len(changed) + 1


def changed_at(name: str, row: int, value: float) -> Requests:
    column = getattr(EXAMPLE, name).copy()
    column[row] = value
    return replace(EXAMPLE, **{name: column})


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (changed_at("arrival_s", 0, -1.0), r"arrival_s: row 0: -1\.0"),
        (changed_at("arrival_s", 1, float("nan")), "arrival_s: row 1: nan"),
        (changed_at("arrival_s", 3, 1.0), r"arrival_s: row 3: 1\.0 is earlier"),
        (changed_at("prompt_tokens", 2, 0), "prompt_tokens: row 2: 0 is not at least 1"),
        (changed_at("prompt_tokens", 2, 4), "block_offsets: row 2 has 0 blocks, but 4 prompt tokens make 1 full"),
        (changed_at("output_tokens", 3, 0), "output_tokens: row 3: 0"),
        (changed_at("component", 1, 2), "component: row 1: 2 is not from 0 to 1"),
        (changed_at("max_tokens", 1, -1), "max_tokens: row 1"),
        (changed_at("turns", 1, -1), "turns: row 1"),
        (changed_at("tools", 0, 2), "tools: row 0: 2"),
        (changed_at("json_format", 0, -1), "json_format: row 0: -1"),
        (changed_at("system_hash", 2, 2**32), "system_hash: row 2"),
        (changed_at("block_ids", 1, -1), "block_ids: row 0: -1 is not from 0"),
        (changed_at("block_ids", 1, 2**40), "block_ids: row 0"),
        (changed_at("block_offsets", 0, 1), "block_offsets: they run from 1"),
        (changed_at("block_ids", 3, 0), "block_ids: row 1: block 0 follows another prefix than in row 0"),
        (replace(EXAMPLE, block_tokens=0), "block_tokens: 0"),
        (replace(EXAMPLE, turns=EXAMPLE.turns[:2]), r"turns: int64\[4\] expected, got int64\[2\]"),
        (replace(EXAMPLE, arrival_s=EXAMPLE.turns), r"arrival_s: float64\[4\] expected, got int64"),
    ],
)
def test_a_broken_promise_is_refused_with_column_and_row(broken: Requests, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        broken.check()


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mask: bool\[4\] expected"):
        EXAMPLE.select(np.ones(3, np.bool_))
