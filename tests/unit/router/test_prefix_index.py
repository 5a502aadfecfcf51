"""Where prompts were sent tells how much of the next prompt each worker holds."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dolphin_router.completion_request import CompletionRequest
from dolphin_router.prefix_index import PrefixIndex, block_keys, bytes_of_blocks, prompt_seed
from dolphin_router.worker_bits import BitPool

SEED = b"model"


def _index(*, capacity_tokens: int = 10**9, max_blocks: int = 10**6) -> PrefixIndex:
    return PrefixIndex(capacity_tokens=capacity_tokens, max_blocks=max_blocks)


def _sent(index: PrefixIndex, worker: str, content: bytes, *, seed: bytes = SEED) -> None:
    index.insert(worker, block_keys(seed, content), bytes_per_token=4.0)


def _whole_blocks(size: int) -> int:
    """Bytes of the whole blocks within so many bytes: of 512 up to 8,192, then of 2,048, from 32,768 on of 8,192."""
    if size <= 8192:
        return size // 512 * 512
    return size // 2048 * 2048 if size <= 32_768 else size // 8192 * 8192


contents = st.builds(
    lambda alphabet, size: (alphabet * (size // len(alphabet) + 1))[:size],
    st.binary(min_size=1, max_size=64),
    st.integers(0, 70_000),
)


@given(content=contents)
@settings(deadline=None)
def test_a_prompt_that_was_sent_is_held_up_to_its_last_whole_block(content: bytes) -> None:
    index = _index()
    _sent(index, "a:1", content)
    keys = block_keys(SEED, content)
    assert index.matched_bytes(keys, ["a:1", "b:1"]) == [_whole_blocks(len(content)), 0]
    assert bytes_of_blocks(len(keys)) == _whole_blocks(len(content))


@given(shared=contents, first=contents, second=contents)
@settings(deadline=None)
def test_of_a_shared_prefix_exactly_the_whole_blocks_match(shared: bytes, first: bytes, second: bytes) -> None:
    index = _index()
    _sent(index, "a:1", shared + b"\x00" + first)
    (matched,) = index.matched_bytes(block_keys(SEED, shared + b"\x01" + second), ["a:1"])
    assert matched == _whole_blocks(len(shared))


def test_the_next_turn_of_a_conversation_finds_the_turn_before() -> None:
    turn = b'[{"role":"user","content":"' + b"x" * 5000 + b'"}]'
    following = turn[:-1] + b',{"role":"assistant","content":"Yes."},{"role":"user","content":"Why?"}]'
    index = _index()
    _sent(index, "a:1", turn)
    assert index.matched_bytes(block_keys(SEED, following), ["a:1"]) == [4608]  # nine blocks of 512 in 5,029 bytes


def test_bytes_and_views_of_them_have_the_same_keys() -> None:
    content = bytes(range(256)) * 50
    assert block_keys(SEED, memoryview(content)) == block_keys(SEED, content)


def test_blocks_in_another_place_or_under_another_seed_do_not_match() -> None:
    block = b"x" * 512
    keys = block_keys(SEED, block * 4)
    assert len(set(keys)) == 4
    assert set(keys).isdisjoint(block_keys(b"other", block * 4))


@pytest.mark.parametrize(
    "member",
    [
        '"model":"n"',
        '"tools":[{"type":"function"}]',
        '"chat_template":"{{messages}}"',
        '"chat_template_kwargs":{"thinking":true}',
        '"documents":[{"text":"d"}]',
        '"cache_salt":"s"',
    ],
)
def test_what_changes_the_prompts_tokens_changes_the_seed(member: str) -> None:
    def seed(members: str, *, is_chat: bool = True) -> bytes:
        body = '{"messages":[{"role":"user","content":"hi"}],"prompt":"hi"' + members + "}"
        return prompt_seed(CompletionRequest(body.encode(), is_chat=is_chat))

    plain = seed("")
    assert seed("," + member) != plain
    assert seed("," + member, is_chat=False) != seed("," + member)
    assert seed(',"max_tokens":7,"stream":true') == plain


def test_a_model_whose_name_looks_like_other_members_has_a_seed_of_its_own() -> None:
    def seed(members: str) -> bytes:
        return prompt_seed(CompletionRequest(('{"prompt":"hi",' + members + "}").encode(), is_chat=False))

    assert seed(r'"model":"\u0000m"') != seed(r'"cache_salt":"","model":"m"')


def test_keys_cannot_be_foreseen_even_with_a_fixed_hash_seed() -> None:
    program = "from dolphin_router.prefix_index import block_keys; print(block_keys(b'm', b'x' * 512))"
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    runs = {
        subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True).stdout
        for _ in range(2)
    }
    assert len(runs) == 2


def test_many_workers_are_told_apart() -> None:
    workers = [f"10.0.0.{number}:8000" for number in range(100)]
    content = os.urandom(60_000)
    index = _index()
    for number, worker in enumerate(workers):
        _sent(index, worker, content[: number * 512])
    keys = block_keys(SEED, content)
    expected = [_whole_blocks(number * 512) for number in range(100)]
    assert index.matched_bytes(keys, workers) == expected
    assert index.matched_bytes(keys, workers[::-7]) == expected[::-7]
    assert index.matched_bytes(keys, ["unknown:1", workers[5], workers[5]]) == [0, 2560, 2560]


def test_what_was_used_longest_ago_goes_first_and_from_its_tail() -> None:
    first, second, third = (bytes([number]) * 2048 for number in range(3))
    index = _index(capacity_tokens=10 * 128)  # ten blocks of 512 bytes at 4 bytes a token
    for content in (first, second, first, third):
        _sent(index, "a:1", content)
    held = [index.matched_bytes(block_keys(SEED, content), ["a:1"])[0] for content in (first, second, third)]
    assert held == [2048, 1024, 2048]


def test_a_prompt_that_was_used_again_still_goes_from_its_tail() -> None:
    first, second = (bytes([number]) * 2048 for number in range(2))
    index = _index(capacity_tokens=6 * 128)
    for content in (first, first, second):
        _sent(index, "a:1", content)
    assert [index.matched_bytes(block_keys(SEED, content), ["a:1"])[0] for content in (first, second)] == [1024, 2048]


def test_workers_that_come_and_go_take_each_others_bits() -> None:
    bits = BitPool()
    first, second = bits.take(), bits.take()
    bits.give_back(first)
    assert bits.take() == first
    assert bits.take() not in (first, second)


def test_capacity_is_in_tokens() -> None:
    content = bytes(8192)
    for bytes_per_token, held in ((4.0, 4096), (2.0, 2048), (8.0, 8192)):
        index = _index(capacity_tokens=1024)
        keys = block_keys(SEED, content)
        index.insert("a:1", keys, bytes_per_token=bytes_per_token)
        assert index.matched_bytes(keys, ["a:1"]) == [held]


def test_a_worker_may_have_its_own_capacity() -> None:
    content = bytes(4096)
    index = _index()
    index.set_capacity("a:1", 256)
    for worker in ("a:1", "b:1"):
        _sent(index, worker, content)
    assert index.matched_bytes(block_keys(SEED, content), ["a:1", "b:1"]) == [1024, 4096]
    index.set_capacity("b:1", 128)
    assert index.matched_bytes(block_keys(SEED, content), ["a:1", "b:1"]) == [1024, 512]


def test_workers_share_the_memory_equally() -> None:
    content = os.urandom(8192)
    index = _index(max_blocks=16)
    _sent(index, "a:1", content)
    assert len(index) == 16
    for worker in ("b:1", "c:1", "d:1"):
        _sent(index, worker, content)
    assert index.matched_bytes(block_keys(SEED, content), ["a:1", "b:1", "c:1", "d:1"]) == [2048] * 4
    assert len(index) == 16


def test_a_prompt_without_a_whole_block_is_held_by_nobody() -> None:
    index = _index()
    _sent(index, "a:1", b"short")
    assert index.matched_bytes(block_keys(SEED, b"short"), ["a:1"]) == [0]
    assert len(index) == 0


def test_a_forgotten_worker_leaves_nothing_and_others_stay() -> None:
    content = os.urandom(8192)
    keys = block_keys(SEED, content)
    index = _index()
    for worker in ("a:1", "b:1"):
        _sent(index, worker, content)
    index.forget("a:1")
    index.forget("never seen:1")
    assert index.matched_bytes(keys, ["a:1", "b:1"]) == [0, 8192]
    assert len(index) == 16
    _sent(index, "c:1", content[:1024])  # may take the place of the one that went
    assert index.matched_bytes(keys, ["a:1", "b:1", "c:1"]) == [0, 8192, 1024]
    for worker in ("b:1", "c:1"):
        index.forget(worker)
    assert len(index) == 0
    assert index.matched_bytes(keys, ["a:1", "b:1", "c:1"]) == [0, 0, 0]


def test_an_emptied_worker_keeps_its_capacity() -> None:
    content = os.urandom(4096)
    keys = block_keys(SEED, content)
    index = _index()
    index.set_capacity("a:1", 256)
    _sent(index, "a:1", content)
    index.empty("a:1")
    index.empty("never seen:1")
    assert index.matched_bytes(keys, ["a:1"]) == [0]
    assert len(index) == 0
    _sent(index, "a:1", content)
    assert index.matched_bytes(keys, ["a:1"]) == [1024]


class _Workers(RuleBasedStateMachine):
    """Random prompts on few workers, beside a plain model: a list of blocks in order of use for each worker."""

    max_blocks = 24
    names = ("a:1", "b:1", "c:1")

    def __init__(self) -> None:
        super().__init__()
        self.index = _index(max_blocks=self.max_blocks)
        self.model: dict[str, list[bytes]] = {}

    def prefixes(self, path: list[int]) -> list[bytes]:
        return [bytes(path[: count + 1]) for count in range(len(path))]

    def content(self, path: list[int]) -> bytes:
        return b"".join(bytes([step]) * 512 for step in path)

    @rule(worker=st.sampled_from(names), path=st.lists(st.integers(0, 1), max_size=12))
    def send(self, worker: str, path: list[int]) -> None:
        _sent(self.index, worker, self.content(path))
        if not path:
            return
        self.model.setdefault(worker, [])
        held = self.model[worker]
        for block in reversed(self.prefixes(path)):
            if block in held:
                held.remove(block)
            held.append(block)
        share = self.max_blocks // len(self.model)
        for name, blocks in self.model.items():
            self.model[name] = blocks[-share:]

    @rule(worker=st.sampled_from(names))
    def forget(self, worker: str) -> None:
        self.index.forget(worker)
        self.model.pop(worker, None)

    @rule(path=st.lists(st.integers(0, 1), max_size=14))
    def look_up(self, path: list[int]) -> None:
        matched = self.index.matched_bytes(block_keys(SEED, self.content(path)), self.names)
        for worker, found in zip(self.names, matched, strict=True):
            held = self.model.get(worker, [])
            count = 0
            while count < len(path) and bytes(path[: count + 1]) in held:
                count += 1
            assert found == count * 512

    @invariant()
    def memory_stays_within_its_bound(self) -> None:
        assert len(self.index) == sum(map(len, self.model.values())) <= self.max_blocks

    @invariant()
    def what_is_held_is_found(self) -> None:
        for name, blocks in self.model.items():
            for block in blocks:
                keys = block_keys(SEED, self.content(list(block)))
                assert self.index.matched_bytes(keys, [name]) == [len(block) * 512]

    @invariant()
    def no_block_is_held_without_those_before_it(self) -> None:
        for blocks in self.model.values():
            assert all(block[:-1] in blocks for block in blocks if len(block) > 1)


_Workers.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)
TestWorkers = _Workers.TestCase
