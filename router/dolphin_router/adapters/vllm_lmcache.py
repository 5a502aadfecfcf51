"""vLLM with LMCache: the prefill worker pushes the KV cache to the decode worker and tells the router when it is there.

Protocol: LMCache 0.5.6, ``lmcache/v1/storage_backend/pd_backend.py``, in the form in which the decode worker samples
the first token (LMCache c5f9daee, ``disagg_proxy_server_first_token_from_decoder_xpyd.py``). The other form lets the
prefill worker sample it: the router must then tokenise the prompt, use ``/v1/completions`` for chats too and write the
first token into the answer, so that tool calls, reasoning and log-probabilities are lost.
"""

from __future__ import annotations

from typing import Final, cast

import msgspec

from dolphin_router.completion_request import CompletionRequest
from dolphin_router.messages.engines import LmcacheNotice
from dolphin_router.worker import Worker

from .answer_edits import CachedTokensReplaced
from .base import AnswerEdit, EngineAdapter, Leg, LegOrder, PrefillAnswer
from .prefill_answer import read_answer
from .prefill_body import VLLM_CLAMPS, prefill_body

INIT_PORTS: Final = "lmcache_init_ports"
ALLOC_PORTS: Final = "lmcache_alloc_ports"
"""Facts of a decode worker, from the configuration: its LMCache ``pd_peer_init_port`` and ``pd_peer_alloc_port``, a
tuple with one port for each tensor-parallel rank."""

_UNNAMED: Final = b"{}"


_read_notice = msgspec.msgpack.Decoder(LmcacheNotice).decode


class VllmLmcacheAdapter(EngineAdapter):
    """The decode worker finds the pushed KV cache by the prompt's tokens, so that its leg is the client's request."""

    name = "vllm-lmcache"
    order = LegOrder.SERIAL

    def prefill_leg(self, request: CompletionRequest, prefill: Worker, decode: Worker, transfer_id: int) -> Leg:
        destination = {
            "req_id": str(transfer_id),
            "receiver_host": decode.host,
            "receiver_init_port": decode.facts[INIT_PORTS],
            "receiver_alloc_port": decode.facts[ALLOC_PORTS],
        }
        parameters = msgspec.json.encode({"disagg_spec": destination})
        return Leg(prefill_body(request, VLLM_CLAMPS, parameters))

    def read_prefill_answer(self, body: bytes) -> PrefillAnswer:
        return PrefillAnswer(_UNNAMED, read_answer(body).cached_tokens)

    def notices_awaited(self, decode: Worker) -> int:
        """One from each tensor-parallel rank."""
        return len(cast(tuple[int, ...], decode.facts[INIT_PORTS]))

    def read_notice(self, message: bytes) -> int:
        try:
            return int(_read_notice(message).req_id)
        except (msgspec.MsgspecError, UnicodeError, ValueError) as error:
            raise ValueError(f"not an LMCache notice about a request of this router: {error}") from error

    def decode_leg(
        self,
        request: CompletionRequest,
        prefill: Worker,
        decode: Worker,
        transfer_id: int,
        answer: PrefillAnswer | None,
    ) -> Leg:
        return self.local_leg(request)

    def release_leg(
        self, request: CompletionRequest, prefill: Worker, decode: Worker, answer: PrefillAnswer
    ) -> Leg | None:
        """The KV cache waits in the decode worker's receive buffer until a request with its prompt takes it."""
        return Leg(prefill_body(request, VLLM_CLAMPS, None))

    def answer_edit(self, request: CompletionRequest, answer: PrefillAnswer | None) -> AnswerEdit | None:
        return None if answer is None else CachedTokensReplaced(answer.cached_tokens)
