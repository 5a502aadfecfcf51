"""An emulated engine refuses what a real one refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dolphin_sim.emulator import EmulatedWorker

FAST = 200.0
CHAT = {"messages": [{"role": "user", "content": "hello"}]}
TEXT = {"prompt": "hello"}

REFUSED: list[tuple[dict[str, Any], str]] = [
    (TEXT | {"stream_options": {"include_usage": True}}, "Stream options can only be defined when `stream=True`"),
    (CHAT | {"stream_options": {"include_usage": True}}, "Stream options can only be defined when `stream=True`"),
    (TEXT | {"max_tokens": 1, "min_tokens": 5}, "min_tokens must be less than or equal to max_tokens=1, got 5"),
    (CHAT | {"max_completion_tokens": 1, "min_tokens": 5}, "min_tokens must be less than or equal to max_tokens=1"),
    (TEXT | {"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
    (CHAT | {"max_completion_tokens": 0, "max_tokens": 5}, "max_tokens must be at least 1, got 0"),
    (TEXT | {"n": 0}, "n must be at least 1, got 0"),
    (TEXT | {"n": 2, "temperature": 0}, "n must be 1 when using greedy sampling"),
    (TEXT | {"n": 3, "best_of": 2}, "best_of must be greater than or equal to n"),
    (TEXT | {"temperature": -1}, "temperature must be non-negative"),
    (TEXT | {"top_p": 0}, "top_p must be in (0, 1]"),
    (TEXT | {"presence_penalty": 3}, "presence_penalty must be in [-2, 2]"),
    (TEXT | {"logprobs": -1}, "`logprobs` must be a positive value"),
    (TEXT | {"logprobs": 21}, "greater than max allowed: 20"),
    (CHAT | {"top_logprobs": 2}, "when using `top_logprobs`, `logprobs` must be set to true"),
    (CHAT | {"prompt_logprobs": 1, "stream": True}, "not available when `stream=True`"),
    (CHAT | {"tool_choice": "required"}, "When using `tool_choice`, `tools` must be set"),
    (CHAT | {"continue_final_message": True}, "Cannot set both"),
    (CHAT | {"cache_salt": ""}, "cache_salt"),
    ({}, "Either prompt or prompt_embeds"),
    ({"prompt": []}, "Either prompt or prompt_embeds"),
    ({"prompt": ""}, "prompt cannot be empty"),
    ({"prompt": [1, -5]}, "Token id -5 is out of vocabulary"),
    (TEXT | {"prompt_embeds": "AAAA"}, "--enable-prompt-embeds"),
    ({"messages": []}, "messages must not be empty"),
    ({"messages": [{"content": "x"}]}, "must have a role"),
    ({"prompt": "x" * 400}, "maximum context length is 64 tokens. However, you requested 100 tokens in the prompt"),
    ({"messages": [{"role": "user", "content": "x" * 400}]}, "tokens in the messages"),
    (TEXT | {"max_tokens": 100}, "'max_tokens' or 'max_completion_tokens' is too large: 100"),
    (TEXT | {"max_tokens": "many"}, "max_tokens"),
    (TEXT | {"stream": 7}, "stream"),
    ({"prompt": {"text": "hello"}}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"messages": "hello"}, "messages"),
    (TEXT | {"kv_transfer_params": "yes"}, "kv_transfer_params"),
]


def test_requests_that_vllm_refuses_get_400_and_a_reason(with_worker: Callable[..., None]) -> None:
    async def scene(client: Any, worker: EmulatedWorker) -> None:
        for body, reason in REFUSED:
            answer = await client.complete(worker, **body)
            assert answer.status_code == 400, (body, answer.text)
            error = answer.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert error["code"] == 400
            assert reason in error["message"], (body, error)
        assert worker.is_idle

    with_worker(scene, time_scale=FAST, max_model_len=64)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"text"', b"\xff\xfe", b"[" * 100_000])
def test_bodies_that_are_no_object_get_400(with_worker: Callable[..., None], content: bytes) -> None:
    async def scene(client: Any, worker: EmulatedWorker) -> None:
        answer = await client.http.post(worker.url + "/v1/completions", content=content)
        assert answer.status_code == 400
        assert "error" in answer.json()

    with_worker(scene, time_scale=FAST)


def test_unknown_models_paths_and_methods(with_worker: Callable[..., None]) -> None:
    async def scene(client: Any, worker: EmulatedWorker) -> None:
        answer = await client.complete(worker, prompt="hello", model="another")
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "NotFoundError")
        assert (await client.http.get(worker.url + "/v1/nothing")).status_code == 404
        assert (await client.http.get(worker.url + "/v1/completions")).status_code == 405

    with_worker(scene, time_scale=FAST)


def test_a_key_is_asked_for_where_vllm_asks(with_worker: Callable[..., None]) -> None:
    async def scene(client: Any, worker: EmulatedWorker) -> None:
        assert (await client.complete(worker, prompt="hello")).status_code == 401
        wrong = await client.complete(worker, prompt="hello", headers={"authorization": "Bearer guess"})
        assert wrong.status_code == 401
        right = await client.complete(worker, prompt="hello", headers={"authorization": "Bearer secret"})
        assert right.status_code == 200
        assert (await client.http.get(worker.url + "/health")).status_code == 200

    with_worker(scene, time_scale=FAST, api_key="secret")
