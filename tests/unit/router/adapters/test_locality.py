"""Requests that must be computed where the answer is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dolphin_router.adapters import EngineAdapter
from dolphin_router.completion_request import CompletionRequest

CompletionBuilder = Callable[..., CompletionRequest]


@pytest.mark.parametrize("members", [{"prompt_logprobs": 0}, {"prompt_logprobs": 5}, {"echo": True}])
def test_the_prompts_own_text_and_probabilities_are_local(
    adapter: EngineAdapter, completion: CompletionBuilder, members: dict[str, Any]
) -> None:
    assert adapter.why_local(completion(**members)) in ("prompt_logprobs", "echo")


@pytest.mark.parametrize(
    "members", [{}, {"prompt_logprobs": None}, {"echo": False}, {"n": 1}, {"stream": True}, {"logprobs": 3}]
)
def test_ordinary_requests_may_be_remote(
    adapter: EngineAdapter, completion: CompletionBuilder, members: dict[str, Any]
) -> None:
    assert adapter.why_local(completion(**members)) is None


@pytest.mark.parametrize("prompt", [["a", "b"], [[1, 2], [3]], ["", ""], [[1], [2], [3]]])
def test_batches_are_local_where_one_answer_names_one_kv_cache(
    adapter: EngineAdapter, completion: CompletionBuilder, prompt: list[Any]
) -> None:
    assert adapter.why_local(completion(prompt)) == (None if adapter.name == "sglang" else "batch")


@pytest.mark.parametrize("prompt", ["a", '["a", "b"]', [1, 2, 3], [7], ["a"], [[1, 2]], []])
def test_one_prompt_is_no_batch(adapter: EngineAdapter, completion: CompletionBuilder, prompt: Any) -> None:
    assert adapter.why_local(completion(prompt)) is None


def test_white_space_does_not_hide_a_batch(adapter: EngineAdapter) -> None:
    if adapter.name != "sglang":
        for prompt in (b'\n [ "a" , "b" ]', b"[ [1 , 2],\t[3] ]"):
            request = CompletionRequest(b'{"prompt" : %b }' % prompt, is_chat=False)
            assert adapter.why_local(request) == "batch"


def test_several_messages_are_one_prompt(adapter: EngineAdapter, chat: CompletionBuilder) -> None:
    assert adapter.why_local(chat(messages=[{"role": "user"}, {"role": "assistant"}])) is None


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"n": 2}, "several_choices"),
        ({"best_of": 2}, "several_choices"),
        ({"max_tokens": 1}, "one_token"),
        ({"max_tokens": 50, "max_completion_tokens": 1}, "one_token"),
        ({"max_tokens": 1, "max_completion_tokens": 50}, None),
        ({"max_tokens": 2}, None),
    ],
)
def test_atom_answers_more_requests_locally(
    adapter: EngineAdapter, completion: CompletionBuilder, members: dict[str, Any], reason: str | None
) -> None:
    assert adapter.why_local(completion(**members)) == (reason if adapter.name == "atom" else None)
