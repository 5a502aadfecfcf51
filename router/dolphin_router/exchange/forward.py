"""A request that needs no choice between local and remote prefill: one worker answers it."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from dolphin_router.completion_request import without_control_members
from dolphin_router.fleet import WorkerState
from dolphin_router.http.request import HttpRequest
from dolphin_router.http.response import Response
from dolphin_router.http.upstream import Call, CallFailure

from .headers import forwarded_headers, request_bytes
from .relay import AnswerRelay

if TYPE_CHECKING:
    from dolphin_router.data_plane import DataPlane


class Forward:
    """Passes a request to one worker and its answer back, both unchanged but for what a client may not say.

    Holds a place of the data plane's admission, which it gives back at its end.
    """

    __slots__ = ("_call", "_data_plane", "_is_over", "_is_paused", "_relay", "_response", "_state", "deadline_s")

    def __init__(self, data_plane: DataPlane, request: HttpRequest, response: Response, state: WorkerState) -> None:
        self._data_plane = data_plane
        self._response = response
        self._state = state
        self._is_over = False
        self._is_paused = False
        self._relay = AnswerRelay(response, self, edit=None, extra_headers=[])
        forwarded = forwarded_headers(request.headers)
        body = without_control_members(request.body)
        data = request_bytes(request.method, request.target, state.host_header, forwarded, body)
        self.deadline_s = data_plane.loop.time() + data_plane.config.timeouts.first_byte_s
        state.open_requests += 1
        self._call: Call = Call(state.pool, data, self._relay, is_head=request.method == b"HEAD")
        data_plane.deadlines.add(self)

    def on_answer_begin(self) -> None:
        """Nothing to note."""

    def on_answer_piece(self) -> None:
        """Give the worker time for the next piece."""
        if not self._is_paused:
            self.deadline_s = self._data_plane.loop.time() + self._data_plane.config.timeouts.stream_idle_s

    def on_answer_end(self) -> None:
        """The client has everything."""
        self._end()

    def on_answer_failure(self, failure: CallFailure, reason: str) -> None:
        """Tell the client."""
        if failure is CallFailure.UNREACHABLE:
            self._data_plane.suspect(self._state)
        self._end()
        self._response.error(502, f"the worker failed: {reason}")

    def on_answer_cut(self, reason: str) -> None:
        """The client has been told as far as it can be."""
        self._end()

    def on_client_gone(self) -> None:
        """Stop."""
        self._call.abort()
        self._end()

    def pause(self) -> None:
        """Read no more of the answer: the client is slow."""
        self._is_paused = True
        self.deadline_s = self._data_plane.loop.time() + self._data_plane.config.timeouts.client_stall_s
        self._call.pause()

    def resume(self) -> None:
        """Read on."""
        self._is_paused = False
        self.deadline_s = self._data_plane.loop.time() + self._data_plane.config.timeouts.stream_idle_s
        self._call.resume()

    def on_deadline(self) -> None:
        """Somebody was too slow."""
        self.deadline_s = inf
        self._call.abort()
        if self._is_paused:
            self._response.abandon()
        elif self._response.started:
            self._relay.break_off(504, "the worker was silent")
        else:
            self._response.error(504, "the worker did not answer in time")
        self._end()

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._state.open_requests -= 1
            self._data_plane.admission.leave()
            self._data_plane.deadlines.remove(self)
