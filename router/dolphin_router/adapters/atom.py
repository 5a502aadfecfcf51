"""ROCm ATOM with its mooncake or moriio connector: the prefill worker's answer, and what it said of itself before.

Protocol: ROCm/ATOM ``main`` at ffdf3bb5d (2026-08-22), as its router ATOMesh speaks it
(``atom/mesh/src/core/placement/backend/atom.rs``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

import msgspec
from msgspec import Raw

from dolphin_router.completion_request import CompletionRequest
from dolphin_router.messages.engines import AtomTransferInfo
from dolphin_router.worker import Worker

from .answer_edits import TransferParametersRemoved
from .base import AnswerEdit, EngineAdapter, Leg, LegOrder, PrefillAnswer, Probe
from .locality import why_local
from .prefill_answer import read_answer
from .prefill_body import ATOM_CLAMPS, prefill_body

_ASK_FOR_TRANSFER: Final = b'{"do_remote_decode":true,"do_remote_prefill":false}'
_NO_RANK: Final = Raw(b"null")


_read_info = msgspec.json.Decoder(AtomTransferInfo).decode
_read_members = msgspec.json.Decoder(dict[str, Raw]).decode


class AtomAdapter(EngineAdapter):
    """A prefill worker parks every finished request until a decode worker has fetched its KV cache, aborted ones too.

    So it must never get a plain request, a prefill leg must not be cancelled, and after its answer there must be a
    decode leg or a release leg.
    """

    name = "atom"
    order = LegOrder.SERIAL
    prefill_can_be_cancelled = False

    def probe(self, worker: Worker) -> Probe | None:
        return Probe(worker.port, "/kv_transfer_info") if worker.role == "prefill" else None

    def facts(self, body: bytes) -> Mapping[str, object]:
        try:
            info = _read_info(body)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise ValueError(f"the answer to /kv_transfer_info should hold tp_size and kv_role: {error}") from error
        if info.kv_role != "kv_producer":
            raise ValueError(f"kv_role is {info.kv_role!r}: a prefill worker must be started with kv_role kv_producer")
        return {"tp_size": info.tp_size, "dp_size": info.dp_size}

    def why_local(self, request: CompletionRequest) -> str | None:
        fields = request.fields
        if (fields.n or 1) > 1 or (fields.best_of or 1) > 1:
            return "several_choices"  # The prefill worker's answer then has no parameters.
        limit = fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
        if limit is not None and limit <= 1:
            return "one_token"  # The decode worker would add one to the prefill worker's.
        return why_local(request)

    def prefill_leg(self, request: CompletionRequest, prefill: Worker, decode: Worker, transfer_id: int) -> Leg:
        return Leg(prefill_body(request, ATOM_CLAMPS, _ASK_FOR_TRANSFER))

    def read_prefill_answer(self, body: bytes) -> PrefillAnswer:
        answer = read_answer(body)
        if answer.transfer_parameters is None:
            return answer
        try:
            told = bytes(_read_members(answer.transfer_parameters).get("prefix_cache_hit_tokens", b""))
        except msgspec.MsgspecError as error:
            raise ValueError(f"kv_transfer_params of the prefill worker's answer cannot be read: {error}") from error
        return PrefillAnswer(answer.transfer_parameters, int(told)) if told.isdigit() else answer

    def decode_leg(
        self,
        request: CompletionRequest,
        prefill: Worker,
        decode: Worker,
        transfer_id: int,
        answer: PrefillAnswer | None,
    ) -> Leg:
        if answer is None or answer.transfer_parameters is None:
            return self.local_leg(request)
        return Leg(request.with_members(kv_transfer_params=_completed(answer.transfer_parameters, prefill)))

    def release_leg(
        self, request: CompletionRequest, prefill: Worker, decode: Worker, answer: PrefillAnswer
    ) -> Leg | None:
        if answer.transfer_parameters is None:
            return None
        return Leg(prefill_body(request, ATOM_CLAMPS, _completed(answer.transfer_parameters, prefill)))

    def answer_edit(self, request: CompletionRequest, answer: PrefillAnswer | None) -> AnswerEdit | None:
        """A decode worker puts parameters of its own into every answer; they are nothing for clients."""
        return TransferParametersRemoved()


def _completed(parameters: bytes, prefill: Worker) -> bytes:
    """Return the parameters with the sizes of the prefill engine, which its answer lacks and decode takes for 1."""
    members = _read_members(parameters)
    members["remote_tp_size"] = Raw(b"%d" % cast(int, prefill.facts["tp_size"]))
    members["remote_dp_size"] = Raw(b"%d" % cast(int, prefill.facts["dp_size"]))
    rank = members.get("dp_rank", _NO_RANK)
    if bytes(rank).isdigit():
        members["remote_dp_rank"] = rank
    return msgspec.json.encode(members)
