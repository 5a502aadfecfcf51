"""One try at a request: its workers, its legs, and the KV cache between them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from dolphin_router.adapters.base import Leg, LegOrder, PrefillAnswer
from dolphin_router.completion_request import CompletionRequest
from dolphin_router.fleet import Claim, WorkerState
from dolphin_router.http.request import Headers
from dolphin_router.http.response import Response
from dolphin_router.http.upstream import Call, CallFailure
from dolphin_router.request_record import RequestRecord
from dolphin_router.routing import Route

from .abandoned_prefill import AbandonedPrefill
from .abandoned_transfer import AbandonedTransfer
from .decode_call import DecodeCall
from .kv_arrivals import Arrival
from .prefill_leg import PrefillLeg
from .relay import AnswerRelay, RelayOwner
from .release import ReleaseCall, StrandedPhase

if TYPE_CHECKING:
    from dolphin_router.data_plane import DataPlane

DRAIN_S: Final = 10.0
"""How long the answer of a prefill worker may take after the decode worker's, when both are asked at once."""

CROSSING_S: Final = 0.1
"""How long the answer of a prefill worker that is left may be on its way."""

RELEASE_S: Final = 10.0
"""How long a decode worker may take to drop a KV cache."""

_NOT_YET: Final = PrefillAnswer(None, None)


class AttemptOwner(RelayOwner, Protocol):
    """The request. Hears how the try goes; nothing after :meth:`Attempt.abort`."""

    completion: CompletionRequest
    record: RequestRecord
    response: Response

    def leg_bytes(self, state: WorkerState, leg: Leg) -> bytes:
        """Return the whole request for a worker."""

    def answer_headers(self, route: Route) -> Headers:
        """Return what the answer's head says beside what the worker says."""

    def on_prefill_leg(self) -> None:
        """The prefill worker has been asked, and nobody else."""

    def on_transfer(self) -> None:
        """The prefill worker has answered, and the KV cache is awaited at the decode worker."""

    def on_decode_leg(self) -> None:
        """The worker that answers has been asked."""

    def on_prefill_status(self, status: int, headers: Headers, body: bytes) -> None:
        """The prefill worker has answered with another status than 200."""

    def on_prefill_failure(self, reason: str) -> None:
        """The prefill worker has not answered. Another may."""

    def on_prefill_nonsense(self, reason: str) -> None:
        """The prefill worker has answered with status 200, and the answer cannot be used."""


class Attempt:
    """Sends the legs of one route. Ends by :meth:`end` or :meth:`abort`."""

    __slots__ = (
        "_arrival",
        "_call",
        "_claim",
        "_kv_cache",
        "_owner",
        "_plane",
        "_prefill_leg",
        "_transfer_id",
        "may_be_unread",
        "relay",
        "route",
    )

    def __init__(
        self, plane: DataPlane, owner: AttemptOwner, route: Route, *, kv_cache: PrefillAnswer | None = None
    ) -> None:
        """Take the workers' time; nothing is sent yet.

        Args:
            plane: sends.
            owner: hears what comes of it.
            route: where to.
            kv_cache: what a prefill worker has computed for an earlier try that no decode worker has heard of: there
                is no prefill leg then.
        """
        self._plane = plane
        self._owner = owner
        self.route = route
        self.relay: AnswerRelay | None = None
        self._kv_cache = kv_cache
        self._prefill_leg: PrefillLeg | None = None
        self._call: Call | None = None
        self._arrival: Arrival | None = None
        """Of a KV cache that is pushed to the decode worker, until the worker is asked."""
        self._transfer_id = 0
        self.may_be_unread = False
        """Whether the decode worker has probably closed an idle connection and may well be asked again."""
        features = route.features
        prefill = route.prefill if kv_cache is None else None
        if kv_cache is not None:
            effective_tokens = 0.0
        elif prefill is not None:
            effective_tokens = features.prefill_effective_tokens
        else:
            effective_tokens = features.decode_effective_tokens
        self._claim = Claim(
            prefill, route.decode, prompt_tokens=features.prompt_tokens, effective_tokens=effective_tokens
        )

    def begin(self) -> None:
        """Send the first leg, or both."""
        plane = self._plane
        if self.route.prefill is None:
            self._send_decode_leg(plane.adapter.local_leg(self._owner.completion))
        elif self._kv_cache is not None:
            self._send_remote_decode_leg()
        elif plane.adapter.order is LegOrder.SERIAL:
            self._send_prefill_leg(self.route.prefill)
            self._owner.on_prefill_leg()
        else:
            if plane.adapter.order is LegOrder.CONCURRENT:
                self._send_prefill_leg(self.route.prefill)
            self._send_remote_decode_leg()

    # The prefill leg

    def _send_prefill_leg(self, prefill: WorkerState) -> None:
        owner = self._owner
        plane = self._plane
        decode = self.route.decode.worker
        self._transfer_id = plane.new_transfer_id()
        leg = plane.adapter.prefill_leg(owner.completion, prefill.worker, decode, self._transfer_id)
        if plane.arrivals is not None:
            self._arrival = plane.arrivals.expect(self._transfer_id, plane.adapter.notices_awaited(decode))
        self._prefill_leg = PrefillLeg(prefill, owner.leg_bytes(prefill, leg), self)

    def on_prefill_answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Go on to the decode leg; with both legs under way, only learn what the answer says of its usage."""
        owner = self._owner
        adapter = self._plane.adapter
        self._prefill_leg = None
        if status != 200:
            self._forget_arrival()
            owner.on_prefill_status(status, headers, body)
            return
        self._claim.prefill_is_done()
        try:
            answer = adapter.read_prefill_answer(body)
        except ValueError as error:
            if adapter.order is LegOrder.SERIAL:
                owner.on_prefill_nonsense(str(error))
            return
        if adapter.order is LegOrder.CONCURRENT:
            if self.relay is not None and self.relay.edit is not None:
                self.relay.edit.prefill_answered(answer)
            return
        self._kv_cache = answer
        if answer.transfer_parameters is None:
            self.route = self.route._replace(reason="nothing_to_transfer")
            owner.record.reason = self.route.reason
        arrival = self._arrival
        if arrival is not None and not arrival.is_complete:
            arrival.call_when_complete(self._on_arrival)
            owner.on_transfer()
            return
        self._arrival = None
        self._send_remote_decode_leg()

    def on_prefill_failure(self, failure: CallFailure, reason: str) -> None:
        """Say so."""
        leg, self._prefill_leg = self._prefill_leg, None
        assert leg is not None
        if failure is CallFailure.UNREACHABLE:
            self._forget_arrival()
            self._plane.suspect(leg.state)
        self._owner.on_prefill_failure(reason)

    # A KV cache that is pushed

    def _on_arrival(self) -> None:
        self._arrival = None
        self._send_remote_decode_leg()

    def _abandon_transfer(self, arrival: Arrival) -> None:
        """Have the decode worker drop the KV cache when it has come: nobody else can take it."""
        plane = self._plane
        is_on_its_way = self._kv_cache is not None
        on_arrival = partial(self.release, self._kv_cache or _NOT_YET)
        if arrival.is_complete:
            on_arrival()
            return
        AbandonedTransfer(
            arrival,
            deadlines=plane.deadlines,
            deadline_s=plane.loop.time() + plane.config.timeouts.notice_s,
            on_arrival=on_arrival,
            on_timeout=partial(self._strand, "release") if is_on_its_way else None,
        )

    def _forget_arrival(self) -> None:
        if self._arrival is not None:
            self._arrival.close()
            self._arrival = None

    # The decode leg

    def _send_remote_decode_leg(self) -> None:
        route = self.route
        assert route.prefill is not None
        leg = self._plane.adapter.decode_leg(
            self._owner.completion, route.prefill.worker, route.decode.worker, self._transfer_id, self._kv_cache
        )
        self._send_decode_leg(leg)

    def _send_decode_leg(self, leg: Leg) -> None:
        owner = self._owner
        plane = self._plane
        route = self.route
        answer = self._kv_cache
        if answer is None and route.prefill is not None and plane.adapter.order is LegOrder.CONCURRENT:
            answer = _NOT_YET
        self.relay = AnswerRelay(
            owner.response,
            owner,
            edit=plane.adapter.answer_edit(owner.completion, answer),
            extra_headers=owner.answer_headers(route),
        )
        data = owner.leg_bytes(route.decode, leg)
        if answer is not None:
            self._call = DecodeCall(route.decode.pool, data, self.relay, loop=plane.loop)
        else:
            self._call = Call(route.decode.pool, data, self.relay)
        owner.on_decode_leg()

    def answer_has_begun(self) -> None:
        """The first token has come."""
        self._claim.decode_has_begun()

    def pause(self) -> None:
        """Read no more of the answer until :meth:`resume`."""
        if self._call is not None:
            self._call.pause()

    def resume(self) -> None:
        """Read on."""
        if self._call is not None:
            self._call.resume()

    def decode_failed(self, failure: CallFailure) -> PrefillAnswer | None:
        """Take note that the decode worker has failed, and stop.

        Return:
            The KV cache, when no worker has heard of it: it is the caller's to use or to release.
        """
        call, self._call = self._call, None
        kv_cache = self._kv_cache if self._has_kv_cache else None
        self._kv_cache = None
        self.may_be_unread = failure is CallFailure.CLOSED_EARLY and isinstance(call, DecodeCall) and call.was_idle
        is_unreachable = failure is CallFailure.UNREACHABLE
        if is_unreachable:
            self._plane.suspect(self.route.decode)
        if kv_cache is not None and (not is_unreachable or self._plane.arrivals is not None):
            # It may have been used or not. It must not be used again, and nobody can be asked. One that was pushed is
            # with this worker, and of no use to another.
            self._strand("decode")
            kv_cache = None
        self.abort()
        return kv_cache

    # Ending

    def end(self) -> None:
        """The answer is complete."""
        self._call = None
        self._claim.end()
        leg, self._prefill_leg = self._prefill_leg, None
        if leg is not None:
            self._abandon(leg, DRAIN_S)

    def abort(self) -> None:
        """Stop both legs, and see to it that the prefill worker keeps nothing."""
        self._claim.end()
        leg, self._prefill_leg = self._prefill_leg, None
        if leg is not None:
            self._stop_prefill(leg)
        arrival, self._arrival = self._arrival, None
        if arrival is not None:
            self._abandon_transfer(arrival)
        call, self._call = self._call, None
        if call is None:
            return
        if isinstance(call, DecodeCall) and self._has_kv_cache:
            if not call.was_sent:
                self.release()
            elif self.relay is not None and not self.relay.status:
                call.abort_when_taken_up()
                return
        call.abort()

    def reject(self, status: int) -> None:
        """The decode worker has answered with an error: see to it that the prefill worker keeps nothing."""
        self._call = None
        if self._has_kv_cache:
            if status < 500:
                self.release()
            else:
                # It may have taken the KV cache before it failed.
                self._strand("decode")
        self.abort()

    def release(self, kv_cache: PrefillAnswer | None = None) -> None:
        """Have a decode worker take the KV cache that none has taken, so that the prefill worker frees it."""
        plane = self._plane
        kv_cache = kv_cache or self._kv_cache
        self._kv_cache = None
        prefill = self.route.prefill
        if kv_cache is None or prefill is None:
            return
        decode = self.route.decode
        leg = plane.adapter.release_leg(self._owner.completion, prefill.worker, decode.worker, kv_cache)
        if leg is None:
            return
        ready = plane.fleet.ready["decode"]
        if decode not in ready and ready and plane.arrivals is None:
            # Whoever fetches it will do.
            decode = ready[0]
        ReleaseCall(
            decode,
            self._owner.leg_bytes(decode, leg),
            deadlines=plane.deadlines,
            deadline_s=plane.loop.time() + RELEASE_S,
            on_stranded=partial(self._strand, "release"),
        )

    def _stop_prefill(self, leg: PrefillLeg) -> None:
        adapter = self._plane.adapter
        if adapter.order is not LegOrder.SERIAL:
            leg.abort()
        elif not adapter.prefill_can_be_cancelled:
            self._abandon(leg, self._plane.config.timeouts.prefill_s, keeps_kv_cache=True)
        elif leg.leave():
            # If the answer was on its way already, it names a KV cache.
            self._abandon(leg, CROSSING_S)

    def _abandon(self, leg: PrefillLeg, patience_s: float, *, keeps_kv_cache: bool = False) -> None:
        """Let the leg end by itself.

        Args:
            leg: of the prefill worker.
            patience_s: for how long.
            keeps_kv_cache: whether the worker keeps a KV cache unless it is heard.
        """
        plane = self._plane
        # One that is pushed is announced by itself.
        is_named = plane.adapter.order is LegOrder.SERIAL and plane.arrivals is None
        AbandonedPrefill(
            leg,
            deadlines=plane.deadlines,
            deadline_s=plane.loop.time() + patience_s,
            on_answer=self._on_late_answer if is_named else None,
            on_stranded=partial(self._strand, "prefill") if keeps_kv_cache else None,
        )

    def _on_late_answer(self, body: bytes) -> None:
        try:
            answer = self._plane.adapter.read_prefill_answer(body)
        except ValueError:
            self._strand("prefill")
            return
        self.release(answer)

    @property
    def _has_kv_cache(self) -> bool:
        return self._kv_cache is not None and self._kv_cache.transfer_parameters is not None

    def _strand(self, phase: StrandedPhase) -> None:
        self._owner.record.stranded_leases += 1
        self._plane.stranded(phase)
