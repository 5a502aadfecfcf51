"""Prompt lengths: exact for token ids, near enough for text once an engine has counted some."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolphin_router.completion_request import CompletionRequest
from dolphin_router.token_count import LEAST_TOKENS_PER_BYTE, MOST_MODELS, MOST_TOKENS_PER_BYTE, TokenCounter

ENGLISH = "The router counts the bytes of a prompt and asks the engines what they made of them. "
CHINESE = "路由器计算提示的字节数并询问引擎它们得到了多少个标记"
CODE = "def f(x):\n    if x['a']:\n        return {'b': x['a'] + 1}\n    return None\n\n"


def chat(content: object, *, escaped: bool = True, **members: Any) -> CompletionRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": content}], **members}
    return CompletionRequest(json.dumps(body, ensure_ascii=escaped).encode(), is_chat=True)


def completion(prompt: object, **members: Any) -> CompletionRequest:
    return CompletionRequest(json.dumps({"model": "m", "prompt": prompt, **members}).encode(), is_chat=False)


def tokens_of(text: str) -> int:
    """A stand-in for a tokenizer: 4.5 characters of ASCII a token, 1.5 of anything else."""
    foreign = sum(not character.isascii() for character in text)
    return round((len(text) - foreign) / 4.5 + foreign / 1.5)


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 200_000)), indent=st.sampled_from([None, 1]))
def test_token_ids_are_counted(ids: list[int], indent: int | None) -> None:
    body = json.dumps({"prompt": ids}, indent=indent).encode()
    estimate = TokenCounter().estimate(CompletionRequest(body, is_chat=False))
    assert (estimate.tokens, estimate.is_exact) == (len(ids), True)


@settings(deadline=None)
@given(batch=st.lists(st.lists(st.integers(0, 200_000), min_size=1), min_size=1))
def test_the_ids_of_a_batch_are_counted_together(batch: list[list[int]]) -> None:
    estimate = TokenCounter().estimate(completion(batch))
    assert (estimate.tokens, estimate.is_exact) == (sum(map(len, batch)), True)


@pytest.mark.parametrize(
    "prompt", [[1.5, 2], [-1, 2], ["a", "b"], [[1], "a"], [{}], "[1, 2]", "", 7, None, True, {"a": 1}]
)
def test_what_is_no_list_of_ids_is_estimated(prompt: object) -> None:
    request = CompletionRequest(b'{"prompt":%b}' % json.dumps(prompt).encode(), is_chat=False)
    estimate = TokenCounter().estimate(request)
    assert not estimate.is_exact
    assert 0 <= estimate.tokens <= 10


def test_four_bytes_are_a_token_before_anything_is_learned() -> None:
    assert TokenCounter().estimate(completion(ENGLISH * 40)).tokens == pytest.approx(len(ENGLISH) * 10, rel=0.01)


def test_a_batch_of_texts_is_as_long_as_all_of_them() -> None:
    counter = TokenCounter()
    one, three = counter.estimate(completion([ENGLISH] * 10)), counter.estimate(completion([ENGLISH] * 30))
    assert three.tokens == pytest.approx(3 * one.tokens, rel=0.02)


@pytest.mark.parametrize(
    ("text", "escaped"), [(ENGLISH, True), (CODE, True), (CHINESE, True), (CHINESE, False)], ids=str
)
def test_each_kind_of_text_is_learned_beside_the_others(text: str, escaped: bool) -> None:
    counter = TokenCounter()
    generator = random.Random(1)
    for _ in range(400):
        other = generator.choice([ENGLISH, CHINESE, CODE]) * generator.randint(2, 60)
        request = chat(other, escaped=generator.random() < 0.5)
        counter.learn(counter.estimate(request), tokens_of(other))
    for repeats in (30, 300):
        estimate = counter.estimate(chat(text * repeats, escaped=escaped))
        assert estimate.tokens == pytest.approx(tokens_of(text * repeats), rel=0.1)


def test_what_a_chat_template_adds_is_learned() -> None:
    counter = TokenCounter()
    for repeats in [1, 2, 3, 40] * 60:
        counter.learn(counter.estimate(chat(ENGLISH * repeats)), 90 + tokens_of(ENGLISH * repeats))
    assert counter.estimate(chat(ENGLISH)).tokens == pytest.approx(90 + tokens_of(ENGLISH), rel=0.1)
    assert counter.estimate(chat(ENGLISH * 100)).tokens == pytest.approx(90 + tokens_of(ENGLISH * 100), rel=0.1)


def test_a_few_wild_counts_change_little() -> None:
    counter = TokenCounter()
    request = chat(ENGLISH * 40)
    for _ in range(100):
        counter.learn(counter.estimate(request), 800)
    before = counter.estimate(request).tokens
    for wild in (10**9, 1, 10**9):
        counter.learn(counter.estimate(request), wild)
    assert counter.estimate(request).tokens == pytest.approx(before, rel=0.06)


def test_a_lasting_change_is_followed() -> None:
    counter = TokenCounter()
    request = chat(ENGLISH * 40)
    for count in [800] * 300 + [1400] * 300:
        counter.learn(counter.estimate(request), count)
    assert counter.estimate(request).tokens == pytest.approx(1400, rel=0.05)


@settings(deadline=None, max_examples=50)
@given(counts=st.lists(st.integers(-5, 10**12), max_size=200), text=st.text(min_size=1, max_size=3000))
def test_no_count_leads_out_of_bounds(counts: list[int], text: str) -> None:
    counter = TokenCounter()
    for count in counts:
        counter.learn(counter.estimate(chat(text)), count)
    estimate = counter.estimate(chat(ENGLISH * 200))
    assert LEAST_TOKENS_PER_BYTE * estimate.text_bytes <= estimate.tokens + 1
    assert estimate.tokens <= MOST_TOKENS_PER_BYTE * estimate.text_bytes + 2049


def test_models_are_learned_apart_and_not_without_end() -> None:
    counter = TokenCounter()
    for number in range(2 * MOST_MODELS):
        request = chat(ENGLISH * 40, model=f"m{number}")
        for _ in range(20):
            counter.learn(counter.estimate(request), 500 + number)
    last = 2 * MOST_MODELS - 1
    assert counter.estimate(chat(ENGLISH * 40, model=f"m{last}")).tokens == pytest.approx(500 + last, rel=0.05)
    unknown = counter.estimate(chat(ENGLISH * 40, model="other")).tokens
    assert counter.estimate(chat(ENGLISH * 40, model="m0")).tokens == unknown


def test_offered_tools_are_part_of_the_prompt() -> None:
    tools = [{"type": "function", "function": {"name": "look", "description": ENGLISH * 20}}]
    without, with_tools = TokenCounter().estimate(chat(ENGLISH)), TokenCounter().estimate(chat(ENGLISH, tools=tools))
    assert with_tools.tokens - without.tokens == pytest.approx(len(json.dumps(tools)) / 4, rel=0.02)


def test_a_picture_is_not_counted_by_its_bytes() -> None:
    picture = "data:image/png;base64," + "iVBORw0KGgoAAAANSUhEUgAAAAEA" * 8000
    request = chat([{"type": "text", "text": ENGLISH}, {"type": "image_url", "image_url": {"url": picture}}])
    counter = TokenCounter()
    assert counter.estimate(request).tokens < 2000
    for _ in range(100):
        counter.learn(counter.estimate(request), 300)
    assert counter.estimate(request).tokens == pytest.approx(300, rel=0.1)
    assert counter.estimate(chat(ENGLISH * 40)).tokens == pytest.approx(len(ENGLISH) * 10, rel=0.02)
