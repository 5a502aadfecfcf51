"""Events are read in every form that engines have used, and nonsense is told as such."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolphin_router.kv_events import (
    AllBlocksCleared,
    Batch,
    BlockRemoved,
    BlockStored,
    BlockTransferred,
    EventIndex,
    Malformed,
    decode_batch,
)

encode = msgspec.msgpack.encode

STORED = BlockStored(
    block_hashes=(11, 12),
    parent_block_hash=10,
    token_ids=(1, 2, 3, 4),
    block_size=2,
    lora=None,
    medium="GPU",
    extra_keys=(),
    spec_kind=None,
)
STORED_LIST = ["BlockStored", [11, 12], 10, [1, 2, 3, 4], 2, None, "GPU"]
STORED_MAP = {
    "type": "BlockStored",
    "block_hashes": [11, 12],
    "parent_block_hash": 10,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
}


@pytest.mark.parametrize("stored", [STORED_LIST, STORED_MAP], ids=["vllm-0.11", "vllm-0.33"])
@pytest.mark.parametrize("map_batch", [False, True], ids=["list-batch", "map-batch"])
def test_lists_and_maps_are_read_at_both_levels(stored: Any, map_batch: bool) -> None:
    events = [stored, ["BlockRemoved", [5], "GPU"], {"type": "BlockRemoved", "block_hashes": [6]}, ["AllBlocksCleared"]]
    payload: Any = {"ts": 1.5, "events": events, "data_parallel_rank": 3} if map_batch else [1.5, events, 3]
    assert decode_batch(encode(payload)) == Batch(
        (STORED, BlockRemoved((5,), "GPU"), BlockRemoved((6,), "GPU"), AllBlocksCleared(None)), 3
    )


def test_defaults_may_be_left_out() -> None:
    # SGLang stops after lora_id, and its removals have hashes alone; the rank may be missing at the end of a batch
    events = [STORED_LIST[:6], ["BlockRemoved", [5]], {"type": "AllBlocksCleared"}]
    expected = (STORED, BlockRemoved((5,), "GPU"), AllBlocksCleared(None))
    assert decode_batch(encode([1.5, events])) == Batch(expected, None)
    assert decode_batch(encode({"ts": 1.5, "events": events})) == Batch(expected, None)


def test_hashes_are_numbers_or_bytes() -> None:
    big = 2**64 - 1
    events = [
        ["BlockStored", [b"\x01" * 32, big, -5], b"\x02" * 32, [1, 2, 3], 1, None, None],
        ["BlockRemoved", [b"\x01" * 32, big], None],
    ]
    batch = decode_batch(encode([0.0, events]))
    assert isinstance(batch, Batch)
    stored, removed = batch.events
    assert isinstance(stored, BlockStored)
    assert stored.block_hashes == (b"\x01" * 32, big, -5)
    assert stored.parent_block_hash == b"\x02" * 32
    assert removed == BlockRemoved((b"\x01" * 32, big), "GPU")


def test_later_fields_and_kinds_are_passed_over() -> None:
    events: list[Any] = [
        [*STORED_LIST, None, None, 0, None, None, "an item more", 7],
        {**STORED_MAP, "kv_cache_spec_sliding_window": 4096, "something": {"new": [1]}},
        ["BlockPinned", [1, 2, 3]],
        {"type": "BlockPinned", "block_hashes": "whatever"},
    ]
    assert decode_batch(encode([0.0, events, None, "more"])) == Batch((STORED, STORED), None)


def test_what_blocks_depend_on_beside_tokens_is_kept() -> None:
    salted = {**STORED_MAP, "lora_name": "poet", "lora_id": 4, "extra_keys": [["poet", "salt"], ["poet"]]}
    batch = decode_batch(encode([0.0, [salted]]))
    assert isinstance(batch, Batch)
    (stored,) = batch.events
    assert isinstance(stored, BlockStored)
    assert stored.lora == "poet"
    assert stored.extra_keys == (encode(["salt"]), None)
    plain = decode_batch(encode([0.0, [{**STORED_MAP, "extra_keys": [None, None]}]]))
    assert plain == Batch((STORED,), None)


def test_atoms_media_and_transfers_are_read() -> None:
    events = [
        ["BlockStored", [11, 12], 10, [1, 2, 3, 4], 2, None, "REMOTE"],
        ["BlockTransferred", [11], "GPU", "CPU"],
        ["BlockRemoved", [12], "disk"],
        ["AllBlocksCleared", "CPU"],
    ]
    assert decode_batch(encode([0.0, events])) == Batch(
        (
            STORED._replace(medium="REMOTE"),
            BlockTransferred((11,), "GPU", "CPU"),
            BlockRemoved((12,), "DISK"),
            AllBlocksCleared("CPU"),
        ),
        None,
    )


def test_a_repeat_in_another_medium_needs_no_tokens() -> None:
    event = {"type": "BlockStored", "block_hashes": [11], "token_ids": [], "block_size": 16, "medium": "CPU"}
    batch = decode_batch(encode([0.0, [event]]))
    assert isinstance(batch, Batch)
    (stored,) = batch.events
    assert isinstance(stored, BlockStored)
    assert (stored.block_hashes, stored.token_ids, stored.medium) == ((11,), (), "CPU")


@pytest.mark.parametrize(
    ("event", "may_remove"),
    [
        (["BlockStored", [1, 2], None, [1, 2, 3], 2], False),  # three tokens are not two blocks of two
        (["BlockStored", [1], None, [1, 2], 0], False),
        (["BlockStored", [1], None, [[1, 2]], 1], False),  # SGLang with EAGLE: pairs
        (["BlockStored", [1], None, [True], 1], False),
        (["BlockStored", [1], None, [1], 1, None, "GPU", None, [None, None]], False),
        (["BlockStored", [1], None, [1], 1, None, 7], False),
        (["BlockStored"], False),
        (["BlockRemoved", 7], True),
        (["BlockRemoved", [1.5]], True),
        (["BlockTransferred", [1], "GPU", 5], True),
        (["AllBlocksCleared", 5], True),
        ([], True),
        ([None], True),
        ({"block_hashes": [1]}, True),
        ("BlockRemoved", True),
    ],
)
def test_an_event_that_cannot_be_read_does_not_spoil_the_others(event: Any, may_remove: bool) -> None:
    batch = decode_batch(encode([0.0, [STORED_LIST, event, ["BlockRemoved", [5]]]]))
    assert isinstance(batch, Batch)
    first, bad, last = batch.events
    assert (first, last) == (STORED, BlockRemoved((5,), "GPU"))
    assert isinstance(bad, Malformed)
    assert bad.may_remove is may_remove
    assert bad.reason


@pytest.mark.parametrize("payload", [b"", b"\xc1", encode(7), encode([1.0]), encode([1.0, 7]), encode({"ts": 1.0})])
def test_a_payload_that_is_no_batch_is_told_as_such(payload: bytes) -> None:
    answer = decode_batch(payload)
    assert isinstance(answer, Malformed)
    assert answer.may_remove
    assert answer.reason


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.sampled_from(["GPU", "CPU", "BlockStored", "BlockRemoved", "full_attention"]),
)
nonsense = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
small = st.integers(0, 5)
hashes = st.lists(small | st.binary(max_size=2), max_size=4)
tokens = st.lists(small, max_size=8)
plausible = {
    "block_hashes": hashes,
    "parent_block_hash": st.none() | small,
    "token_ids": tokens,
    "block_size": st.integers(0, 40),
    "lora_id": st.none() | small,
    "medium": st.sampled_from([None, "GPU", "CPU", "REMOTE"]),
    "lora_name": st.none() | st.text(max_size=3),
    "extra_keys": st.none() | st.lists(st.none() | st.lists(scalars, max_size=2), max_size=4),
    "from_medium": st.sampled_from(["GPU", "CPU", "REMOTE"]),
    "to_medium": st.sampled_from(["GPU", "CPU", "REMOTE"]),
    "kv_cache_spec_kind": st.sampled_from([None, "full_attention", "sliding_window"]),
}
kinds = st.sampled_from(["BlockStored", "BlockRemoved", "BlockTransferred", "AllBlocksCleared"])
event_maps = st.builds(
    lambda kind, fields, noise: {"type": kind, **fields, **noise},
    kinds,
    st.fixed_dictionaries({}, optional=plausible),
    st.dictionaries(st.sampled_from([*plausible, "type", "new"]), nonsense, max_size=1),
)
event_lists = st.builds(lambda kind, items: [kind, *items], kinds, st.lists(hashes | tokens | nonsense, max_size=8))
batches = st.builds(
    lambda as_map, events, rank: (
        {"ts": 0.0, "events": events, "data_parallel_rank": rank} if as_map else [0.0, events, rank]
    ),
    st.booleans(),
    st.lists(event_maps | event_lists | nonsense, max_size=6),
    nonsense,
)


@given(payloads=st.lists(batches.map(encode) | nonsense.map(encode) | st.binary(max_size=64), max_size=5))
@settings(deadline=None, max_examples=300)
def test_no_message_can_stop_the_router(payloads: list[bytes]) -> None:
    index = EventIndex(max_blocks_per_worker=8)
    index.watch("a:1")
    for payload in payloads:
        index.apply("a:1", decode_batch(payload))
        assert 0 <= index.matched_tokens((1, 2, 3, 4) * 8, ["a:1"], now_s=0.0)[0] <= 32
        assert index.blocks("a:1") <= 8
    index.unwatch("a:1")
    assert index.matched_tokens((1, 2, 3, 4) * 8, ["a:1"], now_s=0.0) == [0]


@given(depth=st.integers(100, 100_000), opening=st.sampled_from([b"\x91", b"\x81\xa1x"]))
@settings(deadline=None, max_examples=20)
def test_deep_nesting_is_no_way_to_stop_it_either(depth: int, opening: bytes) -> None:
    assert isinstance(decode_batch(opening * depth), Malformed)
