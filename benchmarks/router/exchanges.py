"""What the clients ask, and what a right answer to it is."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from stub_engine import COMPLETIONS, MODEL, STREAM_CHUNKS, STREAM_EVENTS

COUNTER_DIGITS: Final = 12
"""Every prompt begins with its number."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What every request of a load looks like. No two prompts begin alike, so no prefix cache helps."""

    prompt_bytes: int
    stream: bool

    def requests(self, **members: object) -> Iterator[bytes]:
        """Yield whole requests without end; the members are added to each body."""
        mark = "\0"
        message = {"role": "user", "content": mark + "lorem ipsum " * (self.prompt_bytes // 12 + 1)}
        message["content"] = message["content"][: self.prompt_bytes - COUNTER_DIGITS + 1]
        body: dict[str, object] = {"model": MODEL, "messages": [message], "max_tokens": STREAM_CHUNKS}
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        before, after = json.dumps({**body, **members}, separators=(",", ":")).encode().split(b"\\u0000")
        head = (
            b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nauthorization: Bearer key\r\n"
            b"content-length: %d\r\n\r\n"
        ) % (COMPLETIONS, len(before) + COUNTER_DIGITS + len(after))
        for number in itertools.count():
            yield b"%b%b%012d%b" % (head, before, number, after)


def fault(status: int, body: bytes, *, stream: bool) -> str | None:
    """Return what is wrong with an answer; none when it is complete."""
    if status != 200:
        return f"status {status}: {body[:200]!r}"
    if not stream:
        return None if body.startswith(b"{") and body.rstrip().endswith(b"}") else f"not an object: {body[-200:]!r}"
    events = body.count(b"data: ")
    if events != STREAM_EVENTS:
        return f"a stream of {events} events instead of {STREAM_EVENTS}, which ends with {body[-100:]!r}"
    return None if body.endswith(b"data: [DONE]\n\n") else f"a stream that ends with {body[-100:]!r}"


def fault_word_for_word(body: bytes, *, stream: bool) -> str | None:
    """Return what is wrong with the words of an answer that looks complete."""
    try:
        return _unlike_the_stub(body, stream=stream)
    except (ValueError, LookupError, TypeError) as error:
        return f"not the worker's answer ({error!r}): {body[:200]!r}"


def _unlike_the_stub(body: bytes, *, stream: bool) -> str | None:
    if not stream:
        answer = json.loads(body)
        right = answer["choices"][0]["message"]["content"] == " token" and answer["usage"]["completion_tokens"] == 1
        return None if right else f"not the worker's answer: {body!r}"
    events = [json.loads(event.removeprefix(b"data: ")) for event in body.split(b"\n\n")[:-2]]
    words = [event["choices"][0]["delta"]["content"] for event in events[:-1]]
    if words != [f" token{number}" for number in range(STREAM_CHUNKS)]:
        return f"a stream with other words: {''.join(words)!r}"
    usage = events[-1]["usage"]
    return None if usage and usage["completion_tokens"] == STREAM_CHUNKS else f"a stream with usage {usage!r}"
