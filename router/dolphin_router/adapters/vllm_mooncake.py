"""vLLM with MooncakeConnector: both legs at once, joined by a transfer id of the router's.

Protocol: vLLM 0.33.0, the mooncake connector; field names as in llm-d-router ``pkg/sidecar/proxy``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

import msgspec

from dolphin_router.completion_request import CompletionRequest
from dolphin_router.messages.engines import MooncakeRank
from dolphin_router.worker import Worker

from .answer_edits import CachedTokensReplaced
from .base import AnswerEdit, EngineAdapter, Leg, LegOrder, PrefillAnswer, Probe
from .prefill_answer import read_answer
from .prefill_body import VLLM_CLAMPS, prefill_body

_BOOTSTRAP_PORT: Final = 8998
"""vLLM's default, ``VLLM_MOONCAKE_BOOTSTRAP_PORT``."""
_RANKS: Final = "ranks"


_read_ranks = msgspec.json.Decoder(dict[int, MooncakeRank]).decode


class VllmMooncakeAdapter(EngineAdapter):
    """The engine id of a prefill worker changes when it restarts: its facts must then be asked for again.

    An engine with several data-parallel ranks has an id for each. The router picks the rank, since it must name it on
    the decode leg before the prefill worker has answered.
    """

    name = "vllm-mooncake"
    order = LegOrder.CONCURRENT

    def probe(self, worker: Worker) -> Probe | None:
        return Probe(worker.bootstrap_port or _BOOTSTRAP_PORT, "/query") if worker.role == "prefill" else None

    def facts(self, body: bytes) -> Mapping[str, object]:
        try:
            ranks = _read_ranks(body)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise ValueError(
                f"the answer to /query should name an engine_id for each data-parallel rank: {error}"
            ) from error
        if not ranks:
            raise ValueError("the answer to /query names no engine yet; ask again when the prefill worker is up")
        return {_RANKS: tuple((rank, ranks[rank].engine_id) for rank in sorted(ranks))}

    def prefill_leg(self, request: CompletionRequest, prefill: Worker, decode: Worker, transfer_id: int) -> Leg:
        parameters = b'{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"%b"}' % _name(transfer_id)
        ranks = _ranks(prefill)
        rank, _ = ranks[transfer_id % len(ranks)]
        headers = ((b"x-data-parallel-rank", b"%d" % rank),) if len(ranks) > 1 else ()
        return Leg(prefill_body(request, VLLM_CLAMPS, parameters), headers)

    def read_prefill_answer(self, body: bytes) -> PrefillAnswer:
        return read_answer(body)

    def decode_leg(
        self,
        request: CompletionRequest,
        prefill: Worker,
        decode: Worker,
        transfer_id: int,
        answer: PrefillAnswer | None,
    ) -> Leg:
        ranks = _ranks(prefill)
        _, engine_id = ranks[transfer_id % len(ranks)]
        host = f"[{prefill.host}]" if ":" in prefill.host else prefill.host
        parameters = b'{"do_remote_prefill":true,"do_remote_decode":false,"transfer_id":"%b",%b}' % (
            _name(transfer_id),
            b'"remote_bootstrap_addr":%b,"remote_engine_id":%b'
            % (
                msgspec.json.encode(f"http://{host}:{prefill.bootstrap_port or _BOOTSTRAP_PORT}"),
                msgspec.json.encode(engine_id),
            ),
        )
        return Leg(request.with_members(kv_transfer_params=parameters))

    def answer_edit(self, request: CompletionRequest, answer: PrefillAnswer | None) -> AnswerEdit | None:
        return None if answer is None else CachedTokensReplaced(answer.cached_tokens)


def _name(transfer_id: int) -> bytes:
    return b"xfer-%016x" % transfer_id


def _ranks(prefill: Worker) -> tuple[tuple[int, str], ...]:
    return cast(tuple[tuple[int, str], ...], prefill.facts[_RANKS])
