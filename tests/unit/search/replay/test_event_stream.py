"""Events are read alike however the stream is cut."""

from __future__ import annotations

import itertools
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from dolphin_search.replay.answer import Answer
from dolphin_search.replay.event_stream import EventStream


def _stream(tokens: int) -> bytes:
    events = [{"choices": [{"index": 0, "text": f" t{number}\n"}]} for number in range(tokens)]
    events.append({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": tokens}})
    return b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"


@settings(deadline=None)
@given(st.integers(1, 12), st.sets(st.integers(0, 900)))
def test_the_cuts_between_reads_do_not_matter(tokens: int, cuts: set[int]) -> None:
    content = _stream(tokens)
    answer = Answer(0.0)
    events = EventStream(answer)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(content)), len(content)]
    for read, (start, stop) in enumerate(itertools.pairwise(bounds)):
        events.feed(content[start:stop], now_s=float(read))
    assert events.is_done
    assert answer.events == answer.tokens == answer.counted_tokens == tokens
    assert answer.first_token_s <= answer.last_token_s < len(bounds)
    first_end = content.index(b"\n") + 1
    assert bounds[int(answer.first_token_s) + 1] >= first_end > bounds[int(answer.first_token_s)]


def test_usage_alone_is_no_token_and_an_error_is_a_failure() -> None:
    answer = Answer(0.0)
    events = EventStream(answer)
    events.feed(b': comment\r\ndata: {"choices":[],"usage":{"completion_tokens":0}}\r\n\r\n', now_s=1.0)
    assert answer.events == 0
    events.feed(b'data: {"error":{"message":"lost"}}\n\ndata: [DONE]\n\n', now_s=2.0)
    assert answer.end == "failed"
    assert "lost" in answer.reason


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    answer = Answer(0.0)
    EventStream(answer).feed(b"data: " + data + b"\n\n", now_s=1.0)
    assert answer.end in ("failed", "not-sent")
