"""The request to the prefill worker and its answer, which the client never sees unless it is an error."""

from __future__ import annotations

from typing import Protocol

from dolphin_router.fleet import WorkerState
from dolphin_router.http.request import Headers
from dolphin_router.http.upstream import Call, CallFailure

MOST_ANSWER_BYTES = 67_108_864
"""One token and the parameters that name the KV cache. Some engines send the prompt's token ids along."""


class PrefillOwner(Protocol):
    """Hears the answer."""

    def on_prefill_answer(self, status: int, headers: Headers, body: bytes) -> None:
        """The prefill worker has answered, with whatever status."""

    def on_prefill_failure(self, failure: CallFailure, reason: str) -> None:
        """The prefill worker has not answered."""


class PrefillLeg:
    """Collects the answer of one prefill worker."""

    __slots__ = ("_body", "_body_bytes", "_call", "_headers", "_status", "owner", "state")

    def __init__(self, state: WorkerState, data: bytes, owner: PrefillOwner) -> None:
        self.state = state
        self.owner = owner
        self._status = 0
        self._headers: Headers = []
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._call = Call(state.pool, data, self)

    def abort(self) -> None:
        """Let the worker see its client leave."""
        self._call.abort()

    def leave(self) -> bool:
        """Let the worker see its client leave, and hand an answer that is on its way over all the same. False when none
        can be."""
        return self._call.leave()

    def on_head(self, status: int, headers: Headers) -> None:
        """Keep the head."""
        self._status = status
        self._headers = headers

    def on_body(self, data: bytes) -> None:
        """Keep a piece of the body."""
        self._body.append(data)
        self._body_bytes += len(data)
        if self._body_bytes > MOST_ANSWER_BYTES:
            self._call.abort()
            self.owner.on_prefill_failure(CallFailure.INVALID, f"the answer is longer than {MOST_ANSWER_BYTES} bytes")

    def on_end(self) -> None:
        """Hand the answer over."""
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self.owner.on_prefill_answer(self._status, self._headers, body)

    def on_failure(self, failure: CallFailure, reason: str) -> None:
        """Hand the failure over."""
        self.owner.on_prefill_failure(failure, reason)
