"""What every engine adapter promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dolphin_router.adapters import ADAPTERS, EngineAdapter, adapter_named
from dolphin_router.adapters.base import LegOrder, PrefillAnswer
from dolphin_router.completion_request import CONTROL_MEMBERS, CompletionRequest
from dolphin_router.worker import Worker

ANSWER = b"""{"id": "x", "choices": [{"finish_reason": "length"}], "usage": {"prompt_tokens": 9},
 "kv_transfer_params": {"remote_block_ids": [[1, 2]], "remote_engine_id": "e", "weird": 1.0E1, "dp_rank": 0}}"""

CLAMPED = {
    "vllm-nixl": {
        "stream", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens", "n", "best_of", "logprobs",
        "top_logprobs", "kv_transfer_params",
    },
    "atom": {"stream", "stream_options", "max_tokens", "max_completion_tokens", "kv_transfer_params"},
    "sglang": {"bootstrap_host", "bootstrap_port", "bootstrap_room"},
}  # fmt: skip
CLAMPED["vllm-mooncake"] = CLAMPED["vllm-lmcache"] = CLAMPED["vllm-nixl"]
ADDED_ON_DECODE = {
    "vllm-nixl": {"kv_transfer_params"},
    "vllm-mooncake": {"kv_transfer_params"},
    "vllm-lmcache": set(),
    "atom": {"kv_transfer_params"},
    "sglang": {"bootstrap_host", "bootstrap_port", "bootstrap_room"},
    "sidecar": set(),
}

JSON_TEXTS = st.one_of(
    st.sampled_from([b"0.3", b"1e400", b"-0", b"12345678901234567890123", b"1.10", b"true", b"null", b"[]", b"{ }"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    ).map(lambda value: msgspec.json.encode(value) if _encodable(value) else b"0"),
)
TYPED: dict[str, st.SearchStrategy[bytes]] = {
    "stream": st.sampled_from([b"true", b"false", b"null"]),
    "stream_options": st.just(b'{"include_usage": true}'),
    "max_tokens": st.sampled_from([b"5", b"null"]),
    "max_completion_tokens": st.sampled_from([b"7", b"null"]),
    "min_tokens": st.sampled_from([b"0", b"3"]),
    "n": st.sampled_from([b"1", b"2"]),
    "best_of": st.just(b"2"),
    "logprobs": st.sampled_from([b"true", b"3"]),
    "top_logprobs": st.just(b"3"),
    "temperature": st.sampled_from([b"0.3", b"1.0e0"]),
}
READ_BY_ROUTING = {"model", "messages", "prompt", "echo", "prompt_logprobs", *TYPED, *CONTROL_MEMBERS}
SPACES = st.sampled_from([b"", b" ", b"\n\t"])


def _encodable(value: Any) -> bool:
    try:
        msgspec.json.decode(msgspec.json.encode(value))
    except (UnicodeError, msgspec.MsgspecError):
        return False
    return True


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    names = st.text().filter(lambda name: name not in READ_BY_ROUTING and _encodable(name))
    members = {b'"messages"': b'[{"role":"user",  "content":"h\\u00e4"}]'}
    members |= {msgspec.json.encode(name): value for name, value in draw(st.dictionaries(names, JSON_TEXTS)).items()}
    for name, values in TYPED.items():
        if draw(st.booleans()):
            members[b'"%b"' % name.encode()] = draw(values)
    gap = draw(SPACES)
    listed = draw(st.permutations([name + gap + b":" + gap + value for name, value in members.items()]))
    return gap + b"{" + gap + (gap + b"," + gap).join(listed) + gap + b"}" + gap


def _members(body: bytes) -> dict[str, bytes]:
    return {name: bytes(value) for name, value in msgspec.json.decode(body, type=dict[str, msgspec.Raw]).items()}


PER_ADAPTER = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
Prefill = Callable[[EngineAdapter], Worker]


@PER_ADAPTER
@given(body=bodies(), transfer_id=st.integers(0, 2**63 - 1))
def test_prefill_leg_differs_from_the_clients_body_in_the_listed_members_only(
    adapter: EngineAdapter, prefill_for: Prefill, decode: Worker, body: bytes, transfer_id: int
) -> None:
    if adapter.order is LegOrder.DECODE_ONLY:
        return
    request = CompletionRequest(body, is_chat=True)
    sent = _members(adapter.prefill_leg(request, prefill_for(adapter), decode, transfer_id).body)
    client = _members(body)
    listed = CLAMPED[adapter.name]
    kept = [name for name in client if name not in listed]
    assert [name for name in sent if name not in listed] == kept
    assert all(sent[name] == client[name] for name in kept)


@PER_ADAPTER
@given(body=bodies(), transfer_id=st.integers(0, 2**63 - 1))
def test_decode_leg_is_the_clients_body_with_members_added(
    adapter: EngineAdapter, prefill_for: Prefill, decode: Worker, body: bytes, transfer_id: int
) -> None:
    request = CompletionRequest(body, is_chat=True)
    answer = adapter.read_prefill_answer(ANSWER) if adapter.order is LegOrder.SERIAL else None
    sent = adapter.decode_leg(request, prefill_for(adapter), decode, transfer_id, answer).body
    assert set(_members(sent)) - set(_members(body)) == ADDED_ON_DECODE[adapter.name]
    assert {name: value for name, value in _members(sent).items() if name in _members(body)} == _members(body)
    assert sent.startswith(body.rstrip()[:-1])


@PER_ADAPTER
@given(body=bodies())
def test_local_leg_is_the_clients_body(adapter: EngineAdapter, body: bytes) -> None:
    leg = adapter.local_leg(CompletionRequest(body, is_chat=True))
    assert leg.body == body
    assert leg.headers == ()


@pytest.mark.parametrize("name", sorted(CONTROL_MEMBERS))
def test_a_client_cannot_name_a_worker(adapter: EngineAdapter, prefill_for: Prefill, decode: Worker, name: str) -> None:
    body = b'{"messages": [], "%b": "evil"}' % name.encode()
    request = CompletionRequest(body, is_chat=True)
    legs = [
        adapter.local_leg(request),
        adapter.decode_leg(request, prefill_for(adapter), decode, 1, adapter.read_prefill_answer(ANSWER)),
    ]
    if adapter.order is not LegOrder.DECODE_ONLY:
        legs.append(adapter.prefill_leg(request, prefill_for(adapter), decode, 1))
    assert all(b"evil" not in leg.body for leg in legs)


def test_an_engine_that_answers_without_parameters_leaves_the_prompt_to_the_decode_worker(
    adapter: EngineAdapter, prefill_for: Prefill, decode: Worker, chat: Callable[..., CompletionRequest]
) -> None:
    if adapter.order is not LegOrder.SERIAL or adapter.name == "vllm-lmcache":
        return
    request = chat(max_tokens=9)
    for body in (b"{}", b'{"kv_transfer_params": null}', b'{"kv_transfer_params":null,"usage":{"prompt_tokens":1}}'):
        answer = adapter.read_prefill_answer(body)
        assert answer == PrefillAnswer(None, None)
        assert adapter.decode_leg(request, prefill_for(adapter), decode, 1, answer) == adapter.local_leg(request)
        assert adapter.release_leg(request, prefill_for(adapter), decode, answer) is None


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", b'{"kv_transfer_params": 3}', b'{"kv_transfer_params": {}'])
def test_an_answer_that_cannot_be_used_is_refused_with_the_reason(adapter: EngineAdapter, body: bytes) -> None:
    if adapter.order is LegOrder.SERIAL:
        with pytest.raises(ValueError, match="prefill worker's answer"):
            adapter.read_prefill_answer(body)


def test_usage_of_an_unknown_form_does_not_fail_a_request(adapter: EngineAdapter) -> None:
    for usage in (b"3", b"null", b'{"prompt_tokens_details": 3}', b'{"prompt_tokens_details": {"cached_tokens": "7"}}'):
        assert adapter.read_prefill_answer(b'{"usage": %b}' % usage).cached_tokens is None


def test_adapters_are_found_by_name() -> None:
    assert {"vllm-nixl", "vllm-mooncake", "vllm-lmcache", "sglang", "atom", "sidecar"} == set(ADAPTERS)
    assert all(adapter_named(name).name == name for name in ADAPTERS)
    with pytest.raises(ValueError, match=r"'nixl' is not known; choose one of vllm-nixl, "):
        adapter_named("nixl")


def test_only_sglang_decode_workers_cannot_prefill() -> None:
    assert {name for name, adapter in ADAPTERS.items() if not adapter.decode_worker_prefills} == {"sglang"}
