"""The emulated tokenizer and the answers made of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolphin_sim.emulator.answers import Answer, expected_text, natural_tokens, prompt_digest
from dolphin_sim.emulator.memory import block_keys
from dolphin_sim.emulator.tokens import VOCABULARY, detokenize, tokenize

TEXTS = st.text(st.characters(codec="utf-8"), max_size=200)


@settings(deadline=None)
@given(TEXTS)
def test_every_text_comes_back(text: str) -> None:
    tokens = tokenize(text)
    assert detokenize(tokens) == text
    assert all(0 <= token < VOCABULARY for token in tokens)


@settings(deadline=None)
@given(st.lists(st.integers(0, VOCABULARY - 1), max_size=50))
def test_every_token_number_has_a_text(tokens: list[int]) -> None:
    detokenize(tokens)


@pytest.mark.parametrize(("text", "tokens"), [("plain text of 40 bytes is 10 tokens long", 10), ("漢字漢字漢字", 6)])
def test_tokens_are_about_as_long_as_real_ones(text: str, tokens: int) -> None:
    assert len(tokenize(text)) == tokens


@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_a_text_that_goes_on_keeps_its_tokens_but_the_last(text: str, more: str) -> None:
    tokens = tokenize(text)[:-1]
    assert tokenize(text + more)[: len(tokens)] == tokens


@settings(deadline=None)
@given(TEXTS, st.integers(0, 100), st.integers(0, 100), st.integers(0, 3))
def test_an_answer_in_pieces_is_the_whole_answer(prompt: str, cut: int, length: int, choice: int) -> None:
    cut = min(cut, length)
    answer = Answer(prompt_digest(tokenize(prompt)), choice)
    assert answer.text(0, cut) + answer.text(cut, length) == expected_text(prompt, length, choice=choice)
    assert detokenize(answer.tokens(0, length)) == answer.text(0, length)
    assert len(answer.tokens(0, length)) == length


def test_other_prompts_and_choices_have_other_answers() -> None:
    answers = {expected_text(prompt, 20, choice=choice) for prompt in ("a", "b", "ab") for choice in range(3)}
    assert len(answers) == 9
    assert len({natural_tokens(prompt_digest(tokenize(str(number)))) for number in range(50)}) > 10


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), max_size=100), st.lists(st.integers(0, 9), max_size=100))
def test_blocks_are_shared_as_far_as_prompts_are(first: list[int], second: list[int]) -> None:
    same = 0
    while same < min(len(first), len(second)) and first[same] == second[same]:
        same += 1
    one, other = (block_keys(prompt, 8, root=1) for prompt in (first, second))
    assert len(one) == len(first) // 8
    shared = same // 8
    assert one[:shared] == other[:shared]
    assert not set(one[shared:]) & set(other)
    assert not set(one) & set(block_keys(first, 8, root=2))
