"""One completion request, from its arrival to the last byte of its answer."""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import TYPE_CHECKING

from dolphin_router.adapters.base import LegOrder, PrefillAnswer
from dolphin_router.completion_request import CompletionRequest
from dolphin_router.decision import Action
from dolphin_router.fleet import Claim
from dolphin_router.http.request import Headers, HttpRequest
from dolphin_router.http.response import Response
from dolphin_router.http.upstream import Call, CallFailure
from dolphin_router.prompt_reader import ReadPrompt
from dolphin_router.request_record import Outcome, RequestRecord
from dolphin_router.routing import Exclusions, NoRoute, Route

from .headers import answer_headers, forwarded_headers, request_bytes
from .prefill_leg import PrefillLeg
from .relay import AnswerRelay
from .release import ReleaseCall

if TYPE_CHECKING:
    from dolphin_router.data_plane import DataPlane

RELEASE_TIMEOUT_S = 10.0
RETRY_AFTER = (b"retry-after", b"1")


class Phase(Enum):
    """Where a request is."""

    QUEUED = "queued"
    PREFILL = "prefill"
    """Serial legs: the prefill worker computes."""
    DECODE = "decode"
    """The worker that answers has been asked and has not begun."""
    ANSWER = "answer"
    """The answer goes to the client."""
    OVER = "over"


class Exchange:
    """A state machine driven by what the client and the workers do. Every phase ends in :meth:`_end`, once."""

    __slots__ = (
        "_answer",
        "_attempts",
        "_call",
        "_claim",
        "_completion",
        "_data_plane",
        "_deadline_before_pause_s",
        "_excluded",
        "_forced_local",
        "_forwarded",
        "_holds_place",
        "_is_paused",
        "_phase",
        "_prefill_attempts",
        "_prefill_leg",
        "_prompt",
        "_record",
        "_relay",
        "_request",
        "_response",
        "_route",
        "_transfer_id",
        "deadline_s",
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
        self._response = response
        self._completion = completion
        self._prompt = prompt
        self._record = record
        self._forwarded = forwarded_headers(request.headers)
        self._phase = Phase.QUEUED
        self._holds_place = False
        self._route: Route | None = None
        self._claim: Claim | None = None
        self._prefill_leg: PrefillLeg | None = None
        self._answer: PrefillAnswer | None = None
        self._call: Call | None = None
        self._relay: AnswerRelay | None = None
        self._transfer_id = 0
        self._excluded: set[str] = set()
        self._forced_local: str | None = None
        self._attempts = 0
        self._prefill_attempts = 0
        self._is_paused = False
        self._deadline_before_pause_s = inf
        self.deadline_s = inf

    # Beginning

    def wait(self) -> None:
        """Wait for a place."""
        self._data_plane.deadlines.add(self)
        self.deadline_s = self._now_s() + self._data_plane.settings.queue_timeout_s

    def on_admission(self) -> None:
        """Begin: there is a place."""
        self._holds_place = True
        self._data_plane.deadlines.add(self)
        self._data_plane.budget.earn()
        self._attempt()

    def _attempt(self) -> None:
        """Choose workers and send the first leg."""
        plane = self._data_plane
        record = self._record
        try:
            route = plane.route(self._completion, self._prompt, Exclusions(self._excluded, self._forced_local))
        except NoRoute as error:
            self._refuse(503, str(error))
            return
        self._route = route
        if record.decision is None:
            record.decision = route.decision
        record.features = route.features
        record.table_digest = None if route.table is None else route.table.digest
        record.action_taken = route.action.text
        record.reason = route.reason
        record.decode_worker = route.decode.name
        record.prefill_worker = None if route.prefill is None else route.prefill.name
        features = route.features
        effective = features.prefill_effective_tokens if route.prefill is not None else features.decode_effective_tokens
        self._claim = Claim(
            route.prefill, route.decode, prompt_tokens=features.prompt_tokens, effective_tokens=effective
        )
        plane.routed(self._prompt, route)
        self._answer = None
        if route.prefill is None:
            leg = plane.adapter.local_leg(self._completion)
            self._send_decode_leg(leg.body, leg.headers)
            return
        self._transfer_id = plane.new_transfer_id()
        if plane.adapter.order is LegOrder.SERIAL:
            self._phase = Phase.PREFILL
            self.deadline_s = self._now_s() + plane.settings.prefill_timeout_s
            self._send_prefill_leg()
        elif plane.adapter.order is LegOrder.CONCURRENT:
            self._send_prefill_leg()
            self._send_remote_decode_leg()
        else:
            self._send_remote_decode_leg()

    # The prefill leg

    def _send_prefill_leg(self) -> None:
        route = self._route
        assert route is not None
        assert route.prefill is not None
        leg = self._data_plane.adapter.prefill_leg(
            self._completion, route.prefill.worker, route.decode.worker, self._transfer_id
        )
        self._prefill_attempts += 1
        data = self._request_bytes(route.prefill.host_header, leg.body, leg.headers)
        self._prefill_leg = PrefillLeg(route.prefill, data, self)

    def on_prefill_answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Go on to the decode leg, try another prefill worker, or pass the error on."""
        leg, self._prefill_leg = self._prefill_leg, None
        if self._phase is Phase.OVER:
            return
        assert self._claim is not None
        self._record.prefill_answered_s = self._now_s()
        if status >= 500:
            retries = self._data_plane.settings.prefill_retries
            self._prefill_failed(
                f"the prefill worker answered {status}",
                retries=min(retries, 1) if status == 500 else retries,
                answer=(status, headers, body),
            )
            return
        if status != 200:
            self._abort_decode_leg()
            self._pass_on(status, headers, body)
            return
        self._claim.prefill_is_done()
        if self._phase is not Phase.PREFILL:
            return  # Both legs are under way: the decode worker's answer is the client's.
        assert leg is not None
        try:
            self._answer = self._data_plane.adapter.read_prefill_answer(body)
        except ValueError as error:
            self._prefill_failed(f"the prefill worker's answer cannot be used: {error}", retries=0)
            return
        if self._answer.transfer_parameters is None:
            self._record.reason = "nothing_to_transfer"
        self._send_remote_decode_leg()

    def on_prefill_failure(self, failure: CallFailure, reason: str) -> None:
        """Try another prefill worker, or do what is to be done without one."""
        leg, self._prefill_leg = self._prefill_leg, None
        if self._phase is Phase.OVER:
            return
        if leg is not None and failure is CallFailure.UNREACHABLE:
            self._data_plane.suspect(leg.state)
        self._prefill_failed(f"the prefill worker failed: {reason}", retries=self._data_plane.settings.prefill_retries)

    def _prefill_failed(
        self, reason: str, *, retries: int, answer: tuple[int, Headers, bytes] | None = None, status: int = 502
    ) -> None:
        """Try again elsewhere, fall back to local prefill, or tell the client."""
        plane = self._data_plane
        route = self._route
        assert route is not None
        assert route.prefill is not None
        self._record.errors.append(reason)
        if self._response.started:
            # Both legs at once, and the decode worker has begun: it waits for a KV cache that will not come.
            assert self._relay is not None
            self._abort_decode_leg()
            self._relay.break_off(502, reason)
            return
        self._abort_decode_leg()
        self._release_claim()
        if self._prefill_attempts <= retries and len(plane.fleet.ready["prefill"]) > 1 and plane.budget.spend():
            self._excluded.add(route.prefill.name)
            self._record.retries += 1
            self._attempt()
        elif plane.settings.on_prefill_error == "local":
            self._forced_local = "prefill_failed"
            self._attempt()
        elif answer is not None:
            self._pass_on(*answer)
        else:
            self._refuse(status, reason)

    # The decode leg

    def _send_remote_decode_leg(self) -> None:
        route = self._route
        assert route is not None
        assert route.prefill is not None
        leg = self._data_plane.adapter.decode_leg(
            self._completion, route.prefill.worker, route.decode.worker, self._transfer_id, self._answer
        )
        self._send_decode_leg(leg.body, leg.headers)

    def _send_decode_leg(self, body: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        plane = self._data_plane
        route = self._route
        assert route is not None
        self._phase = Phase.DECODE
        self.deadline_s = self._now_s() + plane.settings.first_byte_timeout_s
        edit = plane.adapter.answer_edit(self._completion, self._answer)
        self._relay = AnswerRelay(self._response, self, edit=edit, extra_headers=self._explanation())
        data = self._request_bytes(route.decode.host_header, body, headers)
        self._call = Call(route.decode.pool, data, self._relay)
        if self._is_paused:
            self._call.pause()

    def on_answer_head(self, status: int) -> None:
        """Nothing to do before the body."""

    def on_answer_begin(self) -> None:
        """Take note of the first byte."""
        self._phase = Phase.ANSWER
        if self._record.first_byte_s is None:
            self._record.first_byte_s = self._now_s()
        if self._claim is not None:
            self._claim.decode_has_begun()

    def on_answer_piece(self) -> None:
        """Give the worker time for the next piece."""
        if not self._is_paused:
            self.deadline_s = self._now_s() + self._data_plane.settings.stream_idle_timeout_s

    def on_answer_end(self) -> None:
        """The client has everything."""
        relay = self._relay
        assert relay is not None
        record = self._record
        record.status = relay.status
        record.usage_prompt_tokens = relay.prompt_tokens
        record.generated_tokens = (
            relay.completion_tokens if relay.completion_tokens is not None else relay.events or None
        )
        if relay.status >= 400:
            self._release_kv_cache()
            self._abort_prefill_leg()
        self._end("completed" if relay.status < 400 else "rejected")

    def on_answer_failure(self, failure: CallFailure, reason: str) -> None:
        """Start again where that is safe: the client has seen nothing."""
        plane = self._data_plane
        route = self._route
        assert route is not None
        self._call = None
        self._record.errors.append(f"the decode worker failed: {reason}")
        if failure is CallFailure.UNREACHABLE:
            plane.suspect(route.decode)
        elif self._answer is not None and self._answer.transfer_parameters is not None:
            # It may have used the parameters or not. They must not be used again, and nobody can be asked.
            self._strand()
        self._abort_prefill_leg()
        if self._attempts < plane.settings.decode_retries and plane.budget.spend():
            self._attempts += 1
            self._record.retries += 1
            self._excluded.add(route.decode.name)
            unused = self._answer if failure is CallFailure.UNREACHABLE else None
            self._start_again(unused)
            return
        if failure is CallFailure.UNREACHABLE:
            self._release_kv_cache()
        self._refuse(502, f"the decode worker failed: {reason}")

    def _start_again(self, unused: PrefillAnswer | None) -> None:
        """Begin a new attempt, with the KV cache that no worker has been told of where there is one."""
        old = self._route
        assert old is not None
        self._release_claim()
        if unused is None or old.prefill is None:
            self._attempt()
            return
        plane = self._data_plane
        try:
            route = plane.route(self._completion, self._prompt, Exclusions(self._excluded, self._forced_local))
        except NoRoute as error:
            self._release_kv_cache()
            self._refuse(503, str(error))
            return
        self._route = route._replace(
            prefill=old.prefill, action=Action.REMOTE, reason=old.reason, features=old.features, decision=old.decision
        )
        self._record.decode_worker = route.decode.name
        self._claim = Claim(None, route.decode, prompt_tokens=old.features.prompt_tokens, effective_tokens=0.0)
        self._send_remote_decode_leg()

    def on_answer_cut(self, reason: str) -> None:
        """The client has been told as far as it can be."""
        self._record.errors.append(reason)
        self._record.status = 200 if self._relay is None else self._relay.status
        self._abort_prefill_leg()
        self._end("failed")

    # The client

    def on_client_gone(self) -> None:
        """Stop everything that is done for it."""
        if self._phase is Phase.OVER:
            return
        if self._phase is Phase.DECODE and self._call is not None and not self._call.was_sent:
            # Between the legs: the prefill worker keeps a KV cache that nobody is going to ask for.
            self._call.abort()
            self._call = None
            self._release_kv_cache()
        self._abort_prefill_leg()
        self._abort_decode_leg()
        self._end("client-closed")

    def pause(self) -> None:
        """Read no more of the answer: the client is slow."""
        self._is_paused = True
        self.deadline_s = self._now_s() + self._data_plane.settings.client_stall_timeout_s
        if self._call is not None:
            self._call.pause()

    def resume(self) -> None:
        """Read on."""
        self._is_paused = False
        self.deadline_s = self._now_s() + self._data_plane.settings.stream_idle_timeout_s
        if self._call is not None:
            self._call.resume()

    # Time

    def on_deadline(self) -> None:
        """Somebody was too slow."""
        settings = self._data_plane.settings
        self.deadline_s = inf
        if self._phase is Phase.QUEUED:
            self._data_plane.admission.stop_waiting(self)
            self._refuse(429, "too many requests are waiting", RETRY_AFTER)
        elif self._is_paused:
            self._response.abandon()
            self.on_client_gone()
        elif self._phase is Phase.PREFILL:
            self._abort_prefill_leg()
            reason = f"the prefill worker did not answer within {settings.prefill_timeout_s:g} s"
            self._prefill_failed(reason, retries=0, status=504)
        elif self._phase is Phase.DECODE:
            self._abort_decode_leg()
            self._abort_prefill_leg()
            self._refuse(504, f"the decode worker did not answer within {settings.first_byte_timeout_s:g} s")
        elif self._phase is Phase.ANSWER:
            self._abort_decode_leg()
            assert self._relay is not None
            self._relay.break_off(504, f"the worker was silent for {settings.stream_idle_timeout_s:g} s")

    # Ending

    def _refuse(self, status: int, message: str, *headers: tuple[bytes, bytes]) -> None:
        """Answer with an error of our own."""
        self._record.errors.append(message)
        self._record.status = status
        if status == 503:
            headers = (*headers, RETRY_AFTER)
        # First the state, then the answer: its end may begin the connection's next request.
        self._end("failed")
        self._response.error(status, message, headers)

    def _pass_on(self, status: int, headers: Headers, body: bytes) -> None:
        """Answer with a prefill worker's error."""
        self._record.status = status
        self._end("rejected")
        self._response.answer(status, body, answer_headers(headers).returned)

    def _end(self, outcome: Outcome) -> None:
        if self._phase is Phase.OVER:
            return
        self._phase = Phase.OVER
        self.deadline_s = inf
        self._call = None
        self._relay = None
        self._release_claim()
        plane = self._data_plane
        plane.deadlines.remove(self)
        record = self._record
        record.outcome = outcome
        record.finished_s = self._now_s()
        if self._holds_place:
            plane.admission.leave()
        else:
            plane.admission.stop_waiting(self)
        plane.finished(record)

    def _release_claim(self) -> None:
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.end()

    def _abort_prefill_leg(self) -> None:
        leg, self._prefill_leg = self._prefill_leg, None
        if leg is not None:
            leg.abort()

    def _abort_decode_leg(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.abort()

    def _release_kv_cache(self) -> None:
        """See to it that the prefill worker frees a KV cache that no decode worker has taken."""
        answer, self._answer = self._answer, None
        route = self._route
        if answer is None or answer.transfer_parameters is None or route is None or route.prefill is None:
            return
        leg = self._data_plane.adapter.release_leg(self._completion, route.prefill.worker, route.decode.worker, answer)
        if leg is None:
            return
        ReleaseCall(
            route.decode,
            self._request_bytes(route.decode.host_header, leg.body, leg.headers),
            deadlines=self._data_plane.deadlines,
            deadline_s=self._now_s() + RELEASE_TIMEOUT_S,
            on_stranded=self._data_plane.stranded,
        )

    def _strand(self) -> None:
        self._record.stranded_leases += 1
        self._data_plane.stranded()

    def _explanation(self) -> Headers:
        route = self._route
        assert route is not None
        if self._data_plane.settings.explain and self._request.header(b"x-dolphin-explain") == b"1":
            return self._data_plane.explain(route)
        if route.reason == "prefill_failed":
            return [(b"x-dolphin-reason", b"prefill_failed")]
        return []

    def _request_bytes(self, host: bytes, body: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
        return request_bytes(b"POST", self._request.target, host, self._forwarded, body, headers)

    def _now_s(self) -> float:
        return self._data_plane.loop.time()
