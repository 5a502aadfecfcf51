"""Answers become those of an undivided engine, however they arrive, and all else passes byte for byte."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolphin_router.adapters.answer_edits import CachedTokensReplaced, ObjectEdit, TransferParametersRemoved
from dolphin_router.adapters.base import PrefillAnswer

USAGE = b'"usage":{"prompt_tokens":9,"total_tokens":10,"prompt_tokens_details":{"audio":1,"cached_tokens":9}}'
EVENTS = [
    b'data: {"id":"a","choices":[{"delta":{"content":"hi"}}]}\n\n',
    b'data: {"id":"a","choices":[{"delta":{"content":"\\"kv_transfer_params\\" \\"prompt_tokens_details\\""}}]}\n\n',
    b'data: {"temperature":1.0E0,"choices":[],%b,"kv_transfer_params":{"remote_host":"p","x":[1]}}\n\n' % USAGE,
    b'data:{"choices":[],%b,"kv_transfer_params":{}}\r\n\r\n' % USAGE,
    b'data: {"usage":null,"kv_transfer_params":null}\n\n',
    b'data: {"usage":{"prompt_tokens_details":null},"kv_transfer_params":{"a":1}}\n\n',
    b'data: {"usage": broken "prompt_tokens_details" "kv_transfer_params"\n\n',
    b'data: ["prompt_tokens_details", "kv_transfer_params"]\n\n',
    b": ping\n\n",
    b'event: "kv_transfer_params"\nid: 3\n\n',
    b"\n",
    b"data: [DONE]\n\n",
    "data: Ünïcode \ud83d\n\n".encode("utf-8", "surrogatepass"),
    b"\xff\x00 no text at all\n",
]


def _edit(name: str) -> ObjectEdit:
    return TransferParametersRemoved() if name == "parameters" else CachedTokensReplaced(4 if name == "count" else None)


def _streamed(edit: ObjectEdit, pieces: list[bytes]) -> bytes:
    return b"".join([*(edit.events(piece) for piece in pieces), edit.rest()])


@pytest.mark.parametrize("name", ["parameters", "count", "no count"])
@settings(deadline=None, max_examples=150)
@given(
    events=st.lists(st.sampled_from(EVENTS), max_size=6),
    end=st.sampled_from([b"", b"data: [DO", b'data: {"kv_transfer_params":{"a":1},%b}' % USAGE]),
    cuts=st.lists(st.integers(0, 1200), max_size=12),
)
def test_how_a_stream_is_cut_does_not_show(name: str, events: list[bytes], end: bytes, cuts: list[int]) -> None:
    stream = b"".join(events) + end
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[start:stop] for start, stop in pairwise(places)]
    assert _streamed(_edit(name), pieces) == _streamed(_edit(name), [stream])
    assert _streamed(_edit(name), [stream[at : at + 1] for at in range(len(stream))]) == _streamed(
        _edit(name), [stream]
    )


@pytest.mark.parametrize("name", ["parameters", "count", "no count"])
@settings(deadline=None)
@given(pieces=st.lists(st.binary(max_size=40), max_size=8))
def test_what_is_no_event_of_an_engine_passes(name: str, pieces: list[bytes]) -> None:
    assert _streamed(_edit(name), pieces) == b"".join(pieces)


@pytest.mark.parametrize("index", [0, 1, 4, 6, 7, 8, 9, 10, 11, 12, 13])
@pytest.mark.parametrize("name", ["parameters", "count", "no count"])
def test_events_with_nothing_to_edit_pass_byte_for_byte(name: str, index: int) -> None:
    assert _streamed(_edit(name), [EVENTS[index]]) == EVENTS[index]


def test_a_finished_event_is_not_held_back() -> None:
    edit = _edit("count")
    assert edit.events(EVENTS[0] + b"data: ") == EVENTS[0]
    assert edit.events(b"[DONE]") == b""
    assert edit.events(b"\n\n") == b"data: [DONE]\n\n"
    assert edit.rest() == b""


def test_transfer_parameters_are_taken_out_of_a_stream() -> None:
    expected = b'data: {"temperature":1.0E0,"choices":[],%b}\n\n' % USAGE
    assert _streamed(_edit("parameters"), [EVENTS[2]]) == expected
    assert _streamed(_edit("parameters"), [EVENTS[3]]) == b'data:{"choices":[],%b}\r\n\r\n' % USAGE


def test_transfer_parameters_are_taken_out_of_a_whole_answer() -> None:
    body = b'{"id":"a","kv_transfer_params":{"remote_host":"p"},"choices":[{"kv_transfer_params":1}]}'
    assert _edit("parameters").whole(body) == b'{"id":"a","choices":[{"kv_transfer_params":1}]}'
    assert _edit("parameters").whole(b'{"kv_transfer_params" : null}') == b'{"kv_transfer_params" : null}'
    assert _edit("parameters").whole(b"not JSON") == b"not JSON"


@pytest.mark.parametrize(("name", "details"), [("count", b'{"audio":1,"cached_tokens":4}'), ("no count", b"null")])
def test_cached_tokens_are_the_prefill_workers(name: str, details: bytes) -> None:
    body = b'{"x":1.0E0,%b,"kv_transfer_params":null}' % USAGE
    usage = b'"usage":{"prompt_tokens":9,"total_tokens":10,"prompt_tokens_details":%b}' % details
    expected = b'{"x":1.0E0,%b,"kv_transfer_params":null}' % usage
    assert _edit(name).whole(body) == expected
    assert _streamed(_edit(name), [b"data: " + body + b"\n\n"]) == b"data: " + expected + b"\n\n"


@pytest.mark.parametrize(
    "usage", [b"null", b"3", b"{}", b'{"prompt_tokens_details":null}', b'{"a":{"cached_tokens":1}}']
)
def test_usage_without_a_count_passes(usage: bytes) -> None:
    body = b'{"usage":%b, "prompt_tokens_details" : 1}' % usage
    assert _edit("count").whole(body) == body
    assert _edit("no count").whole(body) == body


def test_a_prefill_answer_that_comes_late_still_counts() -> None:
    edit = CachedTokensReplaced(None)
    assert edit.events(EVENTS[0]) == EVENTS[0]
    edit.prefill_answered(PrefillAnswer(None, 5))
    event = edit.events(b"data: {%b}\n\n" % USAGE)
    usage = msgspec.json.decode(event.removeprefix(b"data: "))["usage"]
    assert usage["prompt_tokens_details"] == {"audio": 1, "cached_tokens": 5}
