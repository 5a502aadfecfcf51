"""Passing a worker's answer on to the client."""

from __future__ import annotations

import re
from typing import Protocol

from dolphin_router.adapters.base import AnswerEdit
from dolphin_router.http.errors import error_event
from dolphin_router.http.request import Headers
from dolphin_router.http.response import Response
from dolphin_router.http.upstream import CallFailure

from .headers import answer_headers

HELD_BYTES = 1_048_576
"""Up to this size an answer that is no stream is held back, so that a worker's death can still be told by a status; one
that must be edited is, whatever its size."""

_PROMPT_TOKENS = re.compile(rb'"prompt_tokens"\s*:\s*(\d+)')
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens"\s*:\s*(\d+)')


class RelayOwner(Protocol):
    """Hears how the relay goes."""

    def on_answer_begin(self) -> None:
        """The first bytes are about to be sent to the client."""

    def on_answer_piece(self) -> None:
        """Something more of the answer has come."""

    def on_answer_end(self) -> None:
        """The whole answer has been passed on."""

    def on_answer_failure(self, failure: CallFailure, reason: str) -> None:
        """The worker has failed, and the client has not seen anything of its answer."""

    def on_answer_cut(self, reason: str) -> None:
        """The worker has failed within its answer; the client has been told as far as it can be."""


class AnswerRelay:
    """Listens to a call and writes the client's response.

    A stream goes on as it comes, from its first piece; its head waits for that piece. Another answer is held back
    until it is complete.
    """

    __slots__ = (
        "_events",
        "_extra_headers",
        "_head",
        "_held",
        "_held_bytes",
        "_is_holding",
        "_last_byte",
        "_owner",
        "_response",
        "completion_tokens",
        "edit",
        "prompt_tokens",
        "status",
    )

    def __init__(
        self, response: Response, owner: RelayOwner, *, edit: AnswerEdit | None, extra_headers: Headers
    ) -> None:
        self._response = response
        self._owner = owner
        self.edit = edit
        self._extra_headers = extra_headers
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._is_holding = False
        self._events = 0
        self._last_byte = b""
        self.status = 0
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None

    @property
    def events(self) -> int:
        """Server-sent events that have been passed on."""
        return self._events

    def on_head(self, status: int, headers: Headers) -> None:
        """Decide how the answer will be passed on."""
        self.status = status
        self._head = answer_headers(headers)
        self._is_holding = not self._head.is_event_stream

    def on_body(self, data: bytes) -> None:
        """Pass a piece on, or hold it."""
        if self._is_holding:
            self._held.append(data)
            self._held_bytes += len(data)
            if self._held_bytes <= HELD_BYTES or self.edit is not None:
                self._owner.on_answer_piece()
                return
            data = b"".join(self._held)
            self._held.clear()
            self._is_holding = False
        if not self._response.started:
            self._start(None if self.edit is not None else self._head.length)
        if self._head.is_event_stream:
            # No event holds an empty line, and JSON holds no line breaks.
            self._events += data.count(b"\n\n") + (self._last_byte == b"\n" and data[:1] == b"\n")
            self._last_byte = data[-1:]
            if b'"usage"' in data:
                self._read_usage(data)
            if self.edit is not None:
                data = self.edit.events(data)
        self._response.send(data)
        self._owner.on_answer_piece()

    def on_end(self) -> None:
        """Complete the response."""
        if self._is_holding:
            body = self._held[0] if len(self._held) == 1 else b"".join(self._held)
            if self.edit is not None and self.status == 200:
                body = self.edit.whole(body)
            self._read_usage(body)
            # A HEAD request's answer has the length of a body that it does not have.
            length = len(body) if body else self._head.length or 0
            self._start(length)
            self._response.send(body)
        else:
            if not self._response.started:
                self._start(None)
            if self.edit is not None:
                self._response.send(self.edit.rest())
        self._response.finish()
        self._owner.on_answer_end()

    def on_failure(self, failure: CallFailure, reason: str) -> None:
        """Tell the client as well as it still can be told."""
        if not self._response.started:
            self._owner.on_answer_failure(failure, reason)
        else:
            self.break_off(502, f"the worker failed within its answer: {reason}")

    def break_off(self, status: int, message: str) -> None:
        """End a response that has begun: a stream by an error event, so that nobody takes it for complete."""
        if self._head.is_event_stream and (self._head.length is None or self.edit is not None):
            if self.edit is not None:
                self._response.send(self.edit.rest())
            # An event that was cut must not swallow the error.
            self._response.send(b"\n\n" + error_event(status, message))
            self._response.finish()
        else:
            self._response.abandon()
        self._owner.on_answer_cut(message)

    def _start(self, length: int | None) -> None:
        self._owner.on_answer_begin()
        headers = self._head.returned
        self._response.start(self.status, headers + self._extra_headers, length=length)

    def _read_usage(self, data: bytes) -> None:
        # The last one counts: an engine may report after every token.
        start = max(data.rfind(b'"usage"'), 0)
        prompt = _PROMPT_TOKENS.search(data, start)
        completion = _COMPLETION_TOKENS.search(data, start)
        if prompt is not None and completion is not None:
            self.prompt_tokens = int(prompt[1])
            self.completion_tokens = int(completion[1])
