"""vLLM with NixlConnector or NixlPushConnector: the prefill worker's answer names the blocks to ship.

Protocol: vLLM 0.11.0 and 0.33.0, ``vllm/distributed/kv_transfer/kv_connector/v1/nixl/``. The parameters have seven
members in the first and fourteen in the second; they pass byte for byte.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import UnsetType

from dolphin_router.completion_request import CompletionRequest
from dolphin_router.messages.prefill import NixlParameters
from dolphin_router.worker import Worker

from .answer_edits import CachedTokensReplaced
from .base import AnswerEdit, EngineAdapter, Leg, LegOrder, PrefillAnswer
from .prefill_answer import read_answer
from .prefill_body import VLLM_CLAMPS, prefill_body

_ASK_FOR_TRANSFER: Final = (
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,'
    b'"remote_host":null,"remote_port":null}'
)
_BLOCK_ID: Final = re.compile(rb"[0-9]")
_CACHED_TOKENS: Final = b'"remote_prefill_cached_tokens"'


_read_parameters = msgspec.json.Decoder(NixlParameters).decode


class VllmNixlAdapter(EngineAdapter):
    """Both legs one after the other. A request without parameters is prefilled by the decode worker."""

    name = "vllm-nixl"
    order = LegOrder.SERIAL

    def prefill_leg(self, request: CompletionRequest, prefill: Worker, decode: Worker, transfer_id: int) -> Leg:
        return Leg(prefill_body(request, VLLM_CLAMPS, _ASK_FOR_TRANSFER))

    def read_prefill_answer(self, body: bytes) -> PrefillAnswer:
        answer = read_answer(body)
        if answer.transfer_parameters is None:
            return answer
        parameters = _read_parameters(answer.transfer_parameters)
        # One flat list of blocks in old versions, one list for each KV group in new ones. A prompt below one block
        # leaves none, and the prefill worker then holds nothing for the decode worker.
        blocks = parameters.remote_block_ids
        if isinstance(blocks, UnsetType) or _BLOCK_ID.search(blocks) is None:
            return PrefillAnswer(None, answer.cached_tokens)
        told = parameters.remote_prefill_cached_tokens
        if isinstance(told, UnsetType) or not (count := bytes(told)).isdigit():
            return answer
        return PrefillAnswer(answer.transfer_parameters, int(count))

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
        return Leg(request.with_members(kv_transfer_params=answer.transfer_parameters))

    def release_leg(
        self, request: CompletionRequest, prefill: Worker, decode: Worker, answer: PrefillAnswer
    ) -> Leg | None:
        if answer.transfer_parameters is None:
            return None
        return Leg(prefill_body(request, VLLM_CLAMPS, answer.transfer_parameters))

    def answer_edit(self, request: CompletionRequest, answer: PrefillAnswer | None) -> AnswerEdit | None:
        if answer is None or answer.transfer_parameters is None:
            return None
        # Since 0.31.0 the parameters carry the count, and the decode worker reports it by itself.
        return None if _CACHED_TOKENS in answer.transfer_parameters else CachedTokensReplaced(answer.cached_tokens)
