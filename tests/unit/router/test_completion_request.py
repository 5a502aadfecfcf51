"""A request's body is read without being changed."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dolphin_router.completion_request import CONTROL_MEMBERS, CompletionRequest, RequestError

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_UNREAD = st.text(max_size=8).map(lambda name: f"x-{name}")
_EXTRA = st.dictionaries(_UNREAD, _VALUES, max_size=4)


@given(extra=_EXTRA, ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
def test_a_body_stays_as_it_came_byte_for_byte(extra: dict[str, object], ascii_only: bool, indent: int | None) -> None:
    content = {"model": "m", "prompt": "p", **extra}
    body = json.dumps(content, ensure_ascii=ascii_only, indent=indent).encode(errors="replace")
    request = CompletionRequest(body, is_chat=False)
    assert request.body == body
    added = request.with_members(kv_transfer_params=b'{"a": 0.30}')
    assert added.startswith(body[: body.rindex(b"}")])
    assert json.loads(added) == {**json.loads(body), "kv_transfer_params": {"a": 0.3}}
    assert b'{"a": 0.30}' in added


@given(extra=_EXTRA, control=st.dictionaries(st.sampled_from(sorted(CONTROL_MEMBERS)), _VALUES, min_size=1))
def test_members_by_which_workers_find_each_other_are_taken_out(
    extra: dict[str, object], control: dict[str, object]
) -> None:
    body = json.dumps({"prompt": "p", **control, **extra}).encode()
    assert json.loads(CompletionRequest(body, is_chat=False).body) == {"prompt": "p", **json.loads(json.dumps(extra))}


def test_a_control_member_whose_name_is_escaped_is_taken_out_too() -> None:
    body = rb'{"prompt": "p", "\u006bv_transfer_params": {"remote_host": "elsewhere"}}'
    assert b"elsewhere" not in CompletionRequest(body, is_chat=False).body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"{",
        b'{"prompt": "p"',
        b'{"prompt": "p"} more',
        b'{"prompt": "p", "x": [1,}',
        b'{"prompt": NaN}',
        b'{"prompt": "p", "stream": "yes"}',
        b'{"prompt": "p", "n": "two"}',
        b'{"prompt": "p", "max_tokens": 1.5}',
        b'{"prompt": "p", "model": 7}',
        b'{"messages": []}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "p", "\xff": 1}',
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_a_body_that_cannot_be_read_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError, match="the body"):
        CompletionRequest(body, is_chat=False)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        request = CompletionRequest(body, is_chat=True)
    except RequestError:
        return
    assert isinstance(request.members(), dict)


def test_numbers_keep_their_digits() -> None:
    body = b'{"prompt": "p", "temperature": 0.30000000000000004, "seed": 123456789012345678901234567890, "top_p": 1e-1}'
    members = CompletionRequest(body, is_chat=False).members()
    assert msgspec.json.encode(members["temperature"]) == b"0.30000000000000004"
    assert msgspec.json.encode(members["seed"]) == b"123456789012345678901234567890"
    assert msgspec.json.encode(members["top_p"]) == b"1e-1"


_LONG = b'[{"role": "user", "content": "%b"}]' % (b"lorem \\" + b'"ipsum ' + b"x" * 8000)


@pytest.mark.parametrize(
    "members",
    [
        b'"messages": %b, "seed": 1',
        b'"seed": 1 , "messages"\n:\t%b',
        b'"metadata": {"messages": %b}, "messages": %b',
        b'"messages": %b, "metadata": {"messages": %b}',
        b'"messages": [], "messages": %b',
        b'"messages": %b, "messages": %b',
        b'"a \\"messages": %b, "messages": %b',
        b'"user": "messages", "messages": %b',
        b'"user": "\\"messages\\": [", "messages": %b',
    ],
)
def test_members_around_a_long_prompt_are_those_of_the_body(members: bytes) -> None:
    body = b"{" + members.replace(b"%b", _LONG) + b"}"
    found = CompletionRequest(body, is_chat=True).members()
    expected = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    assert {name: bytes(value) for name, value in found.items()} == {
        name: bytes(value) for name, value in expected.items()
    }
    assert list(found) == list(expected)
