"""What is told of a request to the output-length model."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolphin_router.completion_request import CompletionRequest
from dolphin_router.output_inputs import OutputInputsReader
from dolphin_router.output_length import OutputInputs, system_prompt_bucket

KEY = b"secret of a policy"
HELLO = {"role": "user", "content": "Hello"}
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["role", "content", "x"]), inner),
    max_leaves=12,
)


def read(messages: Any = (HELLO,), **members: Any) -> OutputInputs:
    body = json.dumps({"model": "m", "messages": messages, **members}).encode()
    return OutputInputsReader(key=KEY).read(CompletionRequest(body, is_chat=True), prompt_tokens=12)


def test_a_plain_request_has_nothing_but_its_prompt() -> None:
    assert read() == OutputInputs(12, None, 1, False, False, None)


def test_turns_are_what_users_and_tools_said() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    answer = {"role": "tool", "tool_call_id": "1", "content": "7"}
    system = {"role": "system", "content": "Be brief."}
    assert read([system, HELLO, call, answer, {"role": "assistant", "content": "7"}, HELLO]).turns == 3


@pytest.mark.parametrize(
    ("members", "limit"),
    [
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 9}, 9),
        ({"max_tokens": 7, "max_completion_tokens": 9}, 9),
        ({"max_tokens": None}, None),
        ({"max_tokens": 0}, None),
        ({"max_tokens": -3}, None),
        ({"max_tokens": 10**30}, 2**31 - 1),
    ],
)
def test_the_limit_is_the_clients(members: dict[str, Any], limit: int | None) -> None:
    inputs = read(**members)
    assert inputs.max_tokens == limit
    assert all(value >= 0 for value in inputs.vector())


@pytest.mark.parametrize(("tools", "offered"), [([{"type": "function"}], True), ([], False), (None, False)])
def test_tools_are_offered_or_not(tools: object, offered: bool) -> None:
    assert read(tools=tools).has_tools is offered


@pytest.mark.parametrize(
    ("response_format", "is_json"),
    [
        ({"type": "json_object"}, True),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, True),
        ({"type": "text"}, False),
        ({}, False),
        (None, False),
        ("json", False),
        ({"type": 5}, False),
    ],
)
def test_json_is_asked_for_or_not(response_format: object, is_json: bool) -> None:
    assert read(response_format=response_format).json_response is is_json


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_system_prompt_has_the_bucket_of_its_text(role: str) -> None:
    text = "You are “Delfin”."
    expected = system_prompt_bucket(text, key=KEY)
    parts = [{"type": "text", "text": "You are "}, {"type": "text", "text": "“Delfin”."}]
    for content in (text, parts):
        for escaped in (True, False):
            body = json.dumps({"messages": [{"role": role, "content": content}, HELLO]}, ensure_ascii=escaped)
            reader = OutputInputsReader(key=KEY)
            for _ in range(2):  # the second time from memory
                request = CompletionRequest(body.encode(), is_chat=True)
                assert reader.read(request, prompt_tokens=1).system_prompt_bucket == expected


@pytest.mark.parametrize("content", ["", None, 7, [], [{"type": "image_url"}]])
def test_a_system_prompt_without_text_has_none(content: object) -> None:
    assert read([{"role": "system", "content": content}, HELLO]).system_prompt_bucket is None


def test_system_prompts_without_end_change_nothing() -> None:
    reader = OutputInputsReader(key=KEY)
    for number in range(3000):
        text = f"You are assistant {number}."
        body = json.dumps({"messages": [{"role": "system", "content": text}, HELLO]}).encode()
        bucket = reader.read(CompletionRequest(body, is_chat=True), prompt_tokens=1).system_prompt_bucket
        assert bucket == system_prompt_bucket(text, key=KEY)


def test_a_text_completion_is_one_turn() -> None:
    request = CompletionRequest(b'{"prompt": [1, 2, 3], "max_tokens": 5}', is_chat=False)
    assert OutputInputsReader(key=KEY).read(request, prompt_tokens=3) == OutputInputs(3, 5, 1, False, False, None)


@settings(deadline=None)
@given(messages=JSON, response_format=JSON, tools=JSON)
def test_nothing_that_a_client_sends_is_an_error(messages: Any, response_format: Any, tools: Any) -> None:
    inputs = read(messages, response_format=response_format, tools=tools)
    assert inputs.turns >= 0
    inputs.vector()


def test_messages_that_are_nested_without_end_are_no_error() -> None:
    body = b'{"messages": [{"role": "system", "content": ' + b"[" * 900 + b"]" * 900 + b"}]}"
    inputs = OutputInputsReader(key=KEY).read(CompletionRequest(body, is_chat=True), prompt_tokens=1)
    assert inputs.system_prompt_bucket is None


def test_a_key_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="65 bytes; give one of at most 64"):
        OutputInputsReader(key=bytes(65))
