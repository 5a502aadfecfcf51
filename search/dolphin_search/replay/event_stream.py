"""Reading the events of a streamed completion as they come."""

from __future__ import annotations

from typing import Final

import msgspec

from dolphin_search.replay.answer import Answer

LONGEST_REASON: Final = 200
"""Characters of an error that are kept."""


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None


class _Piece(msgspec.Struct):
    choices: list[msgspec.Raw] = []
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")


_read_piece = msgspec.json.Decoder(_Piece).decode


class EventStream:
    """Fills an answer from the body of a stream of server-sent events, however it is cut into pieces."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._rest = b""
        self.is_done = False
        """Whether the stream said that the answer is complete."""

    def feed(self, data: bytes, *, now_s: float) -> None:
        """Take in the bytes that came now."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now_s)

    def _event(self, content: bytes, now_s: float) -> None:
        if content == b"[DONE]":
            self.is_done = True
            return
        answer = self._answer
        try:
            piece = _read_piece(content)
        except msgspec.MsgspecError as error:
            fail(answer, f"an event cannot be read: {error}")
            return
        if bytes(piece.error) != b"null":
            fail(answer, bytes(piece.error).decode("utf-8", "replace"))
        if piece.choices:
            if answer.events == 0:
                answer.first_token_s = now_s
            answer.last_token_s = now_s
            answer.events += 1
        if piece.usage is not None and piece.usage.completion_tokens is not None:
            answer.counted_tokens = piece.usage.completion_tokens


def fail(answer: Answer, reason: str) -> None:
    """Note that an answer failed. The first reason counts."""
    if answer.end != "failed":
        answer.end = "failed"
        answer.reason = reason[:LONGEST_REASON]
