"""One completion request, from its arrival to the last byte of its answer."""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Final

from dolphin_router.adapters.base import Leg, PrefillAnswer
from dolphin_router.adapters.locality import is_batch
from dolphin_router.completion_request import CompletionRequest
from dolphin_router.fleet import WorkerState
from dolphin_router.http.request import Headers, HttpRequest
from dolphin_router.http.response import Response
from dolphin_router.http.upstream import CallFailure
from dolphin_router.prompt_reader import ReadPrompt
from dolphin_router.request_record import Outcome, RequestRecord
from dolphin_router.routing import NoRoute, Route

from .attempt import Attempt
from .headers import answer_headers, forwarded_headers, request_bytes
from .relay import AnswerRelay
from .retries import Retries

if TYPE_CHECKING:
    from dolphin_router.data_plane import DataPlane

RETRY_AFTER = (b"retry-after", b"1")


_REFUSALS: Final = {429: "overload", 502: "worker_failed", 503: "no_worker", 504: "worker_silent"}
"""By status, for metrics."""


class Phase(Enum):
    """Where a request is."""

    QUEUED = "queued"
    PREFILL = "prefill"
    """Serial legs: the prefill worker computes."""
    TRANSFER = "transfer"
    """The prefill worker has answered, and has not yet announced that the KV cache is at the decode worker."""
    DECODE = "decode"
    """The worker that answers has been asked and has not begun."""
    ANSWER = "answer"
    """The answer goes to the client."""
    OVER = "over"


class Exchange:
    """A state machine driven by what the client and the workers do. Every phase ends in :meth:`_end`, once."""

    __slots__ = (
        "_attempt",
        "_data_plane",
        "_forwarded",
        "_holds_place",
        "_is_paused",
        "_phase",
        "_prompt",
        "_request",
        "_retries",
        "completion",
        "deadline_s",
        "record",
        "response",
    )

    def __init__(
        self,
        data_plane: DataPlane,
        request: HttpRequest,
        response: Response,
        completion: CompletionRequest,
        prompt: ReadPrompt,
        record: RequestRecord,
    ) -> None:
        self._data_plane = data_plane
        self._request = request
        self._prompt = prompt
        self._forwarded = forwarded_headers(request.headers)
        self._phase = Phase.QUEUED
        self._holds_place = False
        self._is_paused = False
        self._attempt: Attempt | None = None
        self._retries = Retries(data_plane, completion, prompt)
        self.completion = completion
        self.record = record
        self.response = response
        self.deadline_s = inf

    # Beginning

    def wait(self) -> None:
        """Wait for a place."""
        self._data_plane.deadlines.add(self)
        self.deadline_s = self._now_s() + self._data_plane.config.timeouts.queue_s

    def on_admission(self) -> None:
        """Begin: there is a place."""
        plane = self._data_plane
        self._holds_place = True
        plane.deadlines.add(self)
        plane.budget.earn()
        try:
            route = self._retries.first_route()
        except NoRoute as error:
            self._refuse(503, str(error))
            return
        self._try(route)
        plane.compare_shadow(self._prompt, route)

    def _try(self, route: Route, kv_cache: PrefillAnswer | None = None) -> None:
        """Send the legs of a route."""
        record = self.record
        record.decision = route.decision
        record.features = route.features
        record.table_digest = None if route.table is None else route.table.digest
        record.action_taken = route.action.text
        record.reason = route.reason
        record.decode_worker = route.decode.name
        record.prefill_worker = None if route.prefill is None else route.prefill.name
        plane = self._data_plane
        plane.routed(self._prompt, route)
        attempt = self._attempt = Attempt(plane, self, route, kv_cache=kv_cache)
        attempt.begin()

    def _try_again(self, route: Route, kv_cache: PrefillAnswer | None = None) -> None:
        self.record.retries += 1
        self._try(route, kv_cache)

    # What the attempt asks for

    def leg_bytes(self, state: WorkerState, leg: Leg) -> bytes:
        """Return the whole request for a worker."""
        return request_bytes(b"POST", self._request.target, state.host_header, self._forwarded, leg.body, leg.headers)

    def answer_headers(self, route: Route) -> Headers:
        """Return the explanation, where it is asked for and allowed, and in any case a word on a failed prefill."""
        plane = self._data_plane
        if plane.config.explain and self._request.header(b"x-dolphin-explain") == b"1":
            return plane.explain(route)
        if route.reason == "prefill_failed":
            return [(b"x-dolphin-reason", b"prefill_failed")]
        return []

    # The prefill leg

    def on_prefill_leg(self) -> None:
        """Give the prefill worker its time."""
        self._phase = Phase.PREFILL
        self.deadline_s = self._now_s() + self._data_plane.config.timeouts.prefill_s

    def on_prefill_status(self, status: int, headers: Headers, body: bytes) -> None:
        """Pass an error on, unless another worker may do better."""
        retries = self._data_plane.config.prefill_retries
        reason = f"the prefill worker answered {status}"
        if 400 <= status < 500:
            if self.response.started:
                self._break_off(status, reason)
            else:
                self._stop_attempt()
                self._pass_on(status, headers, body)
        elif status >= 500:
            retries = min(retries, 1) if status == 500 else retries
            self._prefill_failed(reason, retries=retries, answer=(status, headers, body))
        else:
            self._prefill_failed(f"{reason}, which says nothing of its work", retries=0)

    def on_prefill_failure(self, reason: str) -> None:
        """Try another prefill worker, or do what is to be done without one."""
        self._prefill_failed(f"the prefill worker failed: {reason}", retries=self._data_plane.config.prefill_retries)

    def on_prefill_nonsense(self, reason: str) -> None:
        """Do what is to be done without a prefill worker."""
        self._prefill_failed(f"the prefill worker's answer cannot be used: {reason}", retries=0)

    def _prefill_failed(
        self, reason: str, *, retries: int, answer: tuple[int, Headers, bytes] | None = None, status: int = 502
    ) -> None:
        """Try again elsewhere, fall back to local prefill, or tell the client."""
        if self.response.started:
            # Both legs at once, and the decode worker has begun: it waits for a KV cache that will not come.
            self._break_off(status, reason)
            return
        self.record.errors.append(reason)
        failed = self._stop_attempt()
        route = self._retries.after_prefill_failure(failed, retries=retries)
        if route is not None:
            self._try_again(route)
            return
        route = self._retries.local_route()
        if route is not None:
            self._try(route)
        elif answer is not None:
            self._pass_on(*answer)
        else:
            self._refuse(status, reason)

    # The decode leg

    def on_transfer(self) -> None:
        """Give the KV cache its time."""
        self._phase = Phase.TRANSFER
        self.deadline_s = self._now_s() + self._data_plane.config.timeouts.notice_s

    def _transfer_failed(self, reason: str) -> None:
        """Have the prompt computed where nothing of the KV cache is."""
        self.record.errors.append(reason)
        route = self._retries.after_transfer_failure(self._stop_attempt())
        if route is not None:
            self._try(route)
        else:
            self._refuse(504, reason)

    def on_decode_leg(self) -> None:
        """Give the worker that answers its time."""
        self._phase = Phase.DECODE
        self.deadline_s = self._now_s() + self._data_plane.config.timeouts.first_byte_s

    def on_answer_begin(self) -> None:
        """Take note of the first byte."""
        self._phase = Phase.ANSWER
        if self.record.first_byte_s is None:
            self.record.first_byte_s = self._now_s()
        if self._attempt is not None:
            self._attempt.answer_has_begun()
        if self._is_paused:
            self._wait_for_client()

    def on_answer_piece(self) -> None:
        """Give the worker time for the next piece."""
        if not self._is_paused:
            self.deadline_s = self._now_s() + self._data_plane.config.timeouts.stream_idle_s

    def on_answer_end(self) -> None:
        """The client has everything."""
        attempt = self._attempt
        assert attempt is not None
        relay = attempt.relay
        assert relay is not None
        record = self.record
        record.status = relay.status
        record.usage_prompt_tokens = relay.prompt_tokens
        record.generated_tokens = self._generated_tokens(relay)
        if relay.status >= 400:
            attempt.reject(relay.status)
        self._end("completed" if relay.status < 400 else "rejected")

    def on_answer_failure(self, failure: CallFailure, reason: str) -> None:
        """Start again where that is safe: the client has seen nothing."""
        attempt, self._attempt = self._attempt, None
        assert attempt is not None
        reason = f"the decode worker failed: {reason}"
        self.record.errors.append(reason)
        kv_cache = attempt.decode_failed(failure)
        route = self._retries.after_decode_failure(attempt, has_kv_cache=kv_cache is not None)
        if route is not None:
            self._try_again(route, kv_cache)
            return
        if kv_cache is not None:
            attempt.release(kv_cache)
        self._refuse(502, reason)

    def on_answer_cut(self, reason: str) -> None:
        """The client has been told as far as it can be."""
        self.record.errors.append(reason)
        attempt = self._stop_attempt()
        self.record.status = None if attempt.relay is None else attempt.relay.status
        self._end("failed")

    def _break_off(self, status: int, reason: str) -> None:
        """End an answer that has begun."""
        attempt = self._attempt
        assert attempt is not None
        assert attempt.relay is not None
        attempt.relay.break_off(status, reason)

    def _generated_tokens(self, relay: AnswerRelay) -> int | None:
        if relay.completion_tokens is not None:
            return relay.completion_tokens
        if (self.completion.fields.n or 1) > 1 or is_batch(self.completion):
            return None
        # The last event is [DONE], and a chat's first names the role.
        return max(relay.events - 2 if self.completion.is_chat else relay.events - 1, 0) or None

    # The client

    def on_client_gone(self) -> None:
        """Stop everything that is done for it."""
        self._end("client-closed")

    def pause(self) -> None:
        """The client is slow: read no more of the answer. Before it begins there is nothing to hold back."""
        self._is_paused = True
        if self._phase is Phase.ANSWER:
            self._wait_for_client()

    def resume(self) -> None:
        """Read on."""
        self._is_paused = False
        if self._phase is Phase.ANSWER and self._attempt is not None:
            self.deadline_s = self._now_s() + self._data_plane.config.timeouts.stream_idle_s
            self._attempt.resume()

    def _wait_for_client(self) -> None:
        self.deadline_s = self._now_s() + self._data_plane.config.timeouts.client_stall_s
        if self._attempt is not None:
            self._attempt.pause()

    # Time

    def on_deadline(self) -> None:
        """Somebody was too slow."""
        if self.deadline_s > self._now_s():
            return  # Moved within the same tick, by the end of another request.
        timeouts = self._data_plane.config.timeouts
        self.deadline_s = inf
        if self._phase is Phase.QUEUED:
            self._refuse(429, "too many requests are waiting", RETRY_AFTER)
        elif self._phase is Phase.PREFILL:
            reason = f"the prefill worker did not answer within {timeouts.prefill_s:g} s"
            self._prefill_failed(reason, retries=0, status=504)
        elif self._phase is Phase.TRANSFER:
            self._transfer_failed(f"no notice of the KV cache came within {timeouts.notice_s:g} s")
        elif self._phase is Phase.DECODE:
            self._stop_attempt()
            self._refuse(504, f"the decode worker did not answer within {timeouts.first_byte_s:g} s")
        elif self._is_paused:
            self._end("client-closed")
            self.response.abandon()
        elif self._phase is Phase.ANSWER:
            self._break_off(504, f"the worker was silent for {timeouts.stream_idle_s:g} s")

    # Ending

    def _refuse(self, status: int, message: str, *headers: tuple[bytes, bytes]) -> None:
        """Answer with an error of our own."""
        record = self.record
        if message not in record.errors:
            record.errors.append(message)
        record.status = status
        self._data_plane.refused(_REFUSALS[status])
        if status == 503:
            headers = (*headers, RETRY_AFTER)
        # First the state, then the answer: its end may begin the connection's next request.
        self._end("failed")
        self.response.error(status, message, headers)

    def _pass_on(self, status: int, headers: Headers, body: bytes) -> None:
        """Answer with a prefill worker's error."""
        self.record.status = status
        self._end("rejected")
        self.response.answer(status, body, answer_headers(headers).returned)

    def _stop_attempt(self) -> Attempt:
        attempt, self._attempt = self._attempt, None
        assert attempt is not None
        attempt.abort()
        return attempt

    def _end(self, outcome: Outcome) -> None:
        if self._phase is Phase.OVER:
            return
        self._phase = Phase.OVER
        self.deadline_s = inf
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            if outcome == "completed":
                attempt.end()
            else:
                attempt.abort()
        plane = self._data_plane
        plane.deadlines.remove(self)
        record = self.record
        record.outcome = outcome
        record.finished_s = self._now_s()
        if self._holds_place:
            plane.admission.leave()
        else:
            plane.admission.stop_waiting(self)
        plane.finished(record)

    def _now_s(self) -> float:
        return self._data_plane.loop.time()
