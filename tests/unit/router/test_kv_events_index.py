"""By its events, what an engine holds is known block by block."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from dolphin_router.kv_events import EventIndex, decode_batch

PROMPT = tuple(range(1000, 1100))


def _hash(tokens: Sequence[int], *more: object) -> bytes:
    """Return a hash as an engine might make it: of no meaning to the router."""
    return repr((tuple(tokens), more)).encode()


def _stored(
    tokens: Sequence[int], *, block_size: int = 16, first: int = 0, more: tuple[object, ...] = (), **fields: object
) -> dict[str, Any]:
    """Return the event by which an engine tells that it holds a prompt's whole blocks from the first on."""
    ends = range(block_size, len(tokens) + 1, block_size)
    hashes = [_hash(tokens[:end], *more) for end in ends]
    return {
        "type": "BlockStored",
        "block_hashes": hashes[first:],
        "parent_block_hash": hashes[first - 1] if first else None,
        "token_ids": list(tokens[first * block_size : len(hashes) * block_size]),
        "block_size": block_size,
        **fields,
    }


def _removed(tokens: Sequence[int], *blocks: int, block_size: int = 16, **fields: object) -> dict[str, Any]:
    hashes = [_hash(tokens[: (block + 1) * block_size]) for block in blocks]
    return {"type": "BlockRemoved", "block_hashes": hashes, **fields}


def _index(*workers: str, **settings: Any) -> EventIndex:
    index = EventIndex(**settings)
    for worker in workers or ("a:1",):
        index.watch(worker)
    return index


def _apply(index: EventIndex, *events: object, worker: str = "a:1") -> None:
    index.apply(worker, decode_batch(msgspec.msgpack.encode([0.0, events])))


def _held(index: EventIndex, tokens: Sequence[int] = PROMPT, *, worker: str = "a:1", **request: Any) -> int:
    return index.matched_tokens(tokens, [worker], now_s=request.pop("now_s", 0.0), **request)[0]


def test_stored_blocks_are_held_and_removed_ones_are_not() -> None:
    index = _index()
    _apply(index, _stored(PROMPT))
    assert _held(index) == 96
    assert _held(index, PROMPT[:50]) == 48
    assert _held(index, (*PROMPT[:40], *PROMPT[:40])) == 32
    assert _held(index, PROMPT[1:]) == 0
    _apply(index, _removed(PROMPT, 5, 4))
    assert _held(index) == 64
    _apply(index, {"type": "AllBlocksCleared"})
    assert _held(index) == 0
    assert index.blocks("a:1") == 0


def test_blocks_are_placed_after_their_parents() -> None:
    index = _index()
    _apply(index, _stored(PROMPT[:48]))
    _apply(index, _stored(PROMPT, first=3))
    assert _held(index) == 96


def test_a_gap_in_the_chain_ends_the_match_until_it_is_closed() -> None:
    index = _index()
    _apply(index, _stored(PROMPT), _removed(PROMPT, 2))
    assert _held(index) == 32
    _apply(index, _stored(PROMPT[:48], first=2))
    assert _held(index) == 96


def test_a_block_without_a_known_parent_is_not_counted_as_held() -> None:
    index = _index()
    _apply(index, _stored(PROMPT, first=3))
    assert _held(index) == 0
    assert index.counters.unplaced_blocks == 3


def test_a_block_that_two_requests_computed_is_held_until_both_copies_are_gone() -> None:
    index = _index()
    _apply(index, _stored(PROMPT), _stored(PROMPT))
    _apply(index, _removed(PROMPT, 0, 1, 2, 3, 4, 5))
    assert _held(index) == 96
    _apply(index, _removed(PROMPT, 0, 1, 2, 3, 4, 5))
    assert _held(index) == 0


def test_a_block_is_held_while_any_medium_has_it() -> None:
    index = _index()
    in_memory = {**_stored(PROMPT), "medium": "CPU", "token_ids": [], "parent_block_hash": None}
    _apply(index, {**_stored(PROMPT), "medium": "GPU"}, in_memory)
    _apply(index, _removed(PROMPT, *range(6), medium="GPU"))
    assert _held(index) == 96
    _apply(index, _removed(PROMPT, 5, medium="CPU"))
    assert _held(index) == 80


def test_a_transferred_block_is_held_where_it_went() -> None:
    index = _index()
    hashes = _stored(PROMPT)["block_hashes"]
    _apply(index, {**_stored(PROMPT), "medium": "REMOTE"}, ["BlockTransferred", hashes, "REMOTE", "GPU"])
    assert _held(index) == 96
    _apply(index, ["BlockTransferred", hashes[4:], "GPU", "DISK"], ["AllBlocksCleared", "DISK"])
    assert _held(index) == 64
    _apply(index, _removed(PROMPT, 3, medium="GPU"))
    assert _held(index) == 48


def test_another_salt_or_adapter_is_another_prompt() -> None:
    index = _index()
    blocks = 6
    _apply(
        index,
        _stored(PROMPT[:32]),
        _stored(PROMPT[:48], more=("salt",), extra_keys=[["salt"], None, None]),
        _stored(PROMPT[:64], more=("poet",), lora_name="poet", lora_id=1, extra_keys=[["poet"]] * 4),
        _stored(PROMPT, more=("both",), lora_name="poet", extra_keys=[["poet", "salt"], *[["poet"]] * (blocks - 1)]),
    )
    assert _held(index) == 32
    assert _held(index, model="llama") == 32
    assert _held(index, cache_salt="salt") == 48
    assert _held(index, model="poet") == 64
    assert _held(index, model="poet", cache_salt="salt") == 96
    assert _held(index, cache_salt="other") == 0


@pytest.mark.parametrize("block_size", [1, 4, 12, 16, 32, 64])
def test_engines_may_have_blocks_of_any_size(block_size: int) -> None:
    index = _index("a:1", "b:1")
    prompt = tuple(range(300))
    for tokens in pairwise(range(0, len(prompt) + 1, block_size)):  # block by block, as while decoding
        _apply(index, _stored(prompt[: tokens[1]], block_size=block_size, first=tokens[0] // block_size))
    _apply(index, _stored(prompt[:160]), worker="b:1")
    at_least_16 = block_size * -(-16 // block_size)
    held = len(prompt) - len(prompt) % at_least_16
    assert index.matched_tokens(prompt, ["b:1", "a:1"], now_s=0.0) == [160, held]
    last = held // block_size - 1
    _apply(index, _removed(prompt, last, block_size=block_size))
    assert index.matched_tokens(prompt, ["b:1", "a:1"], now_s=0.0) == [160, held - at_least_16]


def test_pages_within_our_blocks_are_continued_by_whoever_has_them_as_parent() -> None:
    index = _index()
    prompt, other = PROMPT[:64], (*PROMPT[:20], *range(44))
    for tokens, first in ((prompt[:12], 0), (prompt[:24], 3), (prompt, 6), (prompt, 4), (other, 5)):
        _apply(index, _stored(tokens, block_size=4, first=first))
    assert _held(index, prompt) == 64
    assert _held(index, other) == 64
    assert _held(index, (*PROMPT[:20], *range(99, 143))) == 16


def test_layers_that_need_only_the_end_of_a_prompt_say_nothing_of_its_beginning() -> None:
    index = _index()
    _apply(index, _stored(PROMPT, kv_cache_spec_kind="sliding_window", group_idx=1))
    assert _held(index) == 0
    _apply(index, _stored(PROMPT, kv_cache_spec_kind="full_attention", group_idx=0))
    assert _held(index) == 96


def test_a_prompt_counts_as_held_where_it_was_sent_until_its_time_is_up() -> None:
    index = _index("a:1", "b:1")
    for worker in ("a:1", "b:1"):
        _apply(index, worker=worker)
    index.expect("a:1", PROMPT, now_s=10.0)
    assert index.matched_tokens(PROMPT, ["a:1", "b:1"], now_s=11.9) == [96, 0]
    assert index.matched_tokens(PROMPT, ["a:1", "b:1"], now_s=12.0) == [0, 0]


def test_events_make_a_guess_certain_or_void() -> None:
    index = _index()
    _apply(index)
    index.expect("a:1", PROMPT, now_s=10.0)
    _apply(index, _stored(PROMPT[:48]))
    assert _held(index, now_s=11.0) == 96
    assert _held(index, now_s=13.0) == 48
    index.expect("a:1", PROMPT, now_s=20.0)
    _apply(index, _removed(PROMPT, 2))
    assert _held(index, now_s=20.5) == 32


def test_a_prompt_sent_again_gets_time_again() -> None:
    index = _index()
    _apply(index)
    index.expect("a:1", PROMPT, now_s=10.0)
    index.expect("a:1", PROMPT, now_s=11.5)
    assert _held(index, now_s=13.0) == 96
    assert _held(index, now_s=13.5) == 0


def test_nothing_is_guessed_of_a_worker_without_events() -> None:
    index = _index()
    index.expect("a:1", PROMPT, now_s=10.0)
    index.expect("unknown:1", PROMPT, now_s=10.0)
    assert _held(index, now_s=10.0) == 0
    assert index.without_events() == ["a:1"]
    assert not index.publishes("a:1")
    _apply(index)
    assert index.without_events() == []
    assert index.publishes("a:1")


def test_knowledge_is_complete_from_the_first_message_until_something_is_missed() -> None:
    index = _index()
    assert not index.is_complete("a:1")
    index.begin("a:1")
    assert index.is_complete("a:1")
    index.forget("a:1")
    assert not index.is_complete("a:1")
    _apply(index, {"type": "AllBlocksCleared"})
    assert index.is_complete("a:1")
    assert not index.is_complete("unknown:1")


def test_for_salted_requests_knowledge_is_complete_only_if_the_engine_tells_salts() -> None:
    index = _index()
    index.begin("a:1")
    assert not index.is_complete("a:1", salted=True)
    _apply(index, _stored(PROMPT[:16], extra_keys=[["salt"]]))
    assert index.is_complete("a:1", salted=True)


def test_a_message_that_may_have_removed_blocks_makes_the_worker_forgotten() -> None:
    index = _index("a:1", "b:1")
    for worker in ("a:1", "b:1"):
        _apply(index, _stored(PROMPT), worker=worker)
    _apply(index, ["BlockStored", "nonsense"])
    assert _held(index) == 96
    _apply(index, ["BlockRemoved", "nonsense"])
    index.apply("b:1", decode_batch(b"nonsense"))
    assert index.matched_tokens(PROMPT, ["a:1", "b:1"], now_s=0.0) == [0, 0]
    assert (index.counters.decode_errors, index.counters.forgets) == (3, 2)


def test_memory_is_bounded_by_a_number_of_blocks() -> None:
    index = _index(max_blocks_per_worker=4)
    _apply(index, _stored(PROMPT))
    assert index.blocks("a:1") == 4
    assert _held(index) == 64
    assert index.counters.unplaced_blocks == 2


def test_workers_that_went_leave_nothing_behind() -> None:
    index = _index("a:1", "b:1")
    for worker in ("a:1", "b:1"):
        _apply(index, _stored(PROMPT), worker=worker)
    index.unwatch("a:1")
    index.unwatch("a:1")
    index.watch("c:1")
    assert index.matched_tokens(PROMPT, ["a:1", "b:1", "c:1"], now_s=0.0) == [0, 96, 0]


class _Engine(RuleBasedStateMachine):
    """A random engine, beside a plain model: how often it holds each prefix."""

    @initialize(block_size=st.sampled_from([8, 16, 32]))
    def start(self, block_size: int) -> None:
        self.block_size = block_size
        self.index = _index("a:1", "b:1")
        self.copies: dict[tuple[int, ...], int] = {}

    paths = st.lists(st.integers(0, 1), min_size=1, max_size=7).map(tuple)

    def tokens(self, path: tuple[int, ...]) -> list[int]:
        return [step for step in path for _ in range(self.block_size)]

    @rule(path=paths)
    def compute(self, path: tuple[int, ...]) -> None:
        first = 0
        while first < len(path) and path[: first + 1] in self.copies:
            first += 1
        if first == len(path):
            first = 0  # as if another request had computed it at the same time
        for end in range(first + 1, len(path) + 1):
            self.copies[path[:end]] = self.copies.get(path[:end], 0) + 1
        _apply(self.index, _stored(self.tokens(path), block_size=self.block_size, first=first))

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        paths = sorted(self.copies)
        if self.block_size < 16:  # two make one of ours, known by the second, which engines let go of first
            paths = [path for path in paths if not any(other[:-1] == path for other in paths)]
        if not paths:
            return
        path = data.draw(st.sampled_from(paths))
        self.copies[path] -= 1
        if not self.copies[path]:
            del self.copies[path]
        _apply(self.index, _removed(self.tokens(path), len(path) - 1, block_size=self.block_size))

    @rule()
    def reset(self) -> None:
        self.copies.clear()
        _apply(self.index, ["AllBlocksCleared"])

    @rule(path=paths, more=st.integers(0, 15))
    def ask(self, path: tuple[int, ...], more: int) -> None:
        count = 0
        while count < len(path) and path[: count + 1] in self.copies:
            count += 1
        held = self.index.matched_tokens([*self.tokens(path), *[7] * more], ["b:1", "a:1"], now_s=0.0)
        tokens = count * self.block_size
        assert held == [0, tokens - tokens % 16]


_Engine.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)
TestEngine = _Engine.TestCase
