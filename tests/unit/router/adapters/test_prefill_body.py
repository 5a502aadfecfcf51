"""A prefill worker gets the client's body with the listed members clamped, and everything else byte for byte."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dolphin_router.adapters.prefill_body import ATOM_CLAMPS, VLLM_CLAMPS, Clamps, prefill_body
from dolphin_router.completion_request import CompletionRequest

UNTOUCHED: dict[str, bytes] = {
    "temperature": b"0.3",
    "top_p": b"1.0E-1",
    "seed": b"123456789012345678901234567890",
    "tools": b'[{"type": "function", "function": {"name": "f"}}]',
    "tool_choice": b'"auto"',
    "chat_template_kwargs": b'{"enable_thinking":false}',
    "documents": b'[{"text":"\\u00e4"}]',
    "add_generation_prompt": b"true",
    "cache_salt": b'"tenant"',
    "response_format": b'{ "type" : "json_object" }',
    "stop": b'["\\n"]',
    "ignore_eos": b"true",
    "vllm_xargs": b'{"a": 1.50}',
    "user": b'"\xc3\xa4"',
    "some_vendor_member": b'{"deep": [1.0, null, {"x": -0}]}',
}


def _clamped(client: dict[str, bytes], clamps: Clamps) -> dict[str, bytes]:
    members = b"".join(b', "%b": %b' % (name.encode(), value) for name, value in client.items())
    request = CompletionRequest(b'{"messages": [{"role":"user", "content":"hi"}]%b}' % members, is_chat=True)
    body = prefill_body(request, clamps, b'{"p": 1.0}')
    return {name: bytes(value) for name, value in msgspec.json.decode(body, type=dict[str, msgspec.Raw]).items()}


@pytest.mark.parametrize(
    ("member", "sent", "expected"),
    [
        ("stream", b"true", b"false"),
        ("stream", b"false", b"false"),
        ("stream", None, b"false"),
        ("stream_options", b'{"include_usage": true}', None),
        ("max_tokens", b"500", b"1"),
        ("max_tokens", b"null", b"1"),
        ("max_tokens", None, b"1"),
        ("max_completion_tokens", b"500", b"1"),
        ("max_completion_tokens", b"null", b"1"),
        ("max_completion_tokens", None, None),
        ("min_tokens", b"20", b"1"),
        ("min_tokens", None, None),
        ("n", b"4", b"1"),
        ("n", None, None),
        ("best_of", b"3", None),
        ("logprobs", b"true", None),
        ("logprobs", b"5", None),
        ("top_logprobs", b"5", None),
        ("kv_transfer_params", None, b'{"p": 1.0}'),
        ("kv_transfer_params", b'{"remote_host": "evil"}', b'{"p": 1.0}'),
    ],
)
def test_vllm_clamps_member(member: str, sent: bytes | None, expected: bytes | None) -> None:
    client = {} if sent is None else {member: sent}
    assert _clamped(client, VLLM_CLAMPS).get(member) == expected


@pytest.mark.parametrize(
    ("member", "sent", "expected"),
    [
        ("stream", b"true", b"false"),
        ("stream_options", b"{}", None),
        ("max_tokens", None, b"1"),
        ("max_completion_tokens", b"9", b"1"),
        ("max_completion_tokens", None, None),
        ("min_tokens", b"20", b"20"),
        ("logprobs", b"true", b"true"),
    ],
)
def test_atom_keeps_what_bears_on_its_first_token(member: str, sent: bytes | None, expected: bytes | None) -> None:
    client = {} if sent is None else {member: sent}
    assert _clamped(client, ATOM_CLAMPS).get(member) == expected


@pytest.mark.parametrize("clamps", [VLLM_CLAMPS, ATOM_CLAMPS])
@pytest.mark.parametrize("member", sorted(UNTOUCHED))
def test_member_arrives_byte_for_byte(member: str, clamps: Clamps) -> None:
    assert _clamped({member: UNTOUCHED[member]}, clamps)[member] == UNTOUCHED[member]


def test_members_keep_their_order() -> None:
    sent = {"b": b"1", "max_tokens": b"7", "a": b"2", "stream": b"true", "c": b"3"}
    assert list(_clamped(sent, VLLM_CLAMPS)) == [
        "messages", "b", "max_tokens", "a", "stream", "c", "kv_transfer_params",
    ]  # fmt: skip


def test_of_repeated_members_the_last_counts() -> None:
    request = CompletionRequest(b'{"messages": [], "seed": 1, "seed": 2}', is_chat=True)
    body: dict[str, Any] = msgspec.json.decode(prefill_body(request, VLLM_CLAMPS, None))
    assert body == {"messages": [], "seed": 2, "stream": False, "max_tokens": 1}
