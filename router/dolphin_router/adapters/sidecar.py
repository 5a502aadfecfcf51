"""llm-d's sidecar before each decode worker: a header names the prefill worker, and the sidecar sends the legs.

Protocol: llm-d/llm-d-router ebab687, ``pkg/sidecar/proxy``. It also puts the prefill worker's cached tokens into usage.
"""

from __future__ import annotations

from dolphin_router.completion_request import CompletionRequest
from dolphin_router.worker import Worker

from .base import EngineAdapter, Leg, LegOrder, PrefillAnswer


class SidecarAdapter(EngineAdapter):
    """Without the header the engine behind the sidecar prefills by itself."""

    name = "sidecar"
    order = LegOrder.DECODE_ONLY

    def prefill_leg(self, request: CompletionRequest, prefill: Worker, decode: Worker, transfer_id: int) -> Leg:
        raise NotImplementedError("the sidecar sends the prefill leg")

    def decode_leg(
        self,
        request: CompletionRequest,
        prefill: Worker,
        decode: Worker,
        transfer_id: int,
        answer: PrefillAnswer | None,
    ) -> Leg:
        return Leg(request.body, ((b"x-prefiller-host-port", prefill.name.encode()),))
