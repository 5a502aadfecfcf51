"""SGLang: the same body to both workers at once, which meet in a room of the prefill worker's bootstrap server.

Protocol: SGLang 0.5.23, ``managers/io_struct.py`` and ``disaggregation/``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dolphin_router.completion_request import CompletionRequest
from dolphin_router.worker import Worker

from .base import EngineAdapter, Leg, LegOrder, PrefillAnswer
from .locality import is_batch, prompt_count

_BOOTSTRAP_PORT: Final = 8998
"""SGLang's default, ``--disaggregation-bootstrap-port``."""
_ROOM_LIMIT: Final = 2**63
_LIST_LIMIT: Final = 1024
"""Room lists are at most this long, however many choices a client asks for."""


class SglangAdapter(EngineAdapter):
    """A prefill worker stops after one token by itself, so that nothing is clamped. A decode worker refuses requests
    without a room (400): local prefill needs an aggregated worker."""

    name = "sglang"
    order = LegOrder.CONCURRENT
    decode_worker_prefills = False

    def why_local(self, request: CompletionRequest) -> str | None:
        """As elsewhere, but a batch can be shipped: it has a room for each prompt."""
        fields = request.fields
        if fields.prompt_logprobs is not None:
            return "prompt_logprobs"
        return "echo" if fields.echo else None

    def prefill_leg(self, request: CompletionRequest, prefill: Worker, decode: Worker, transfer_id: int) -> Leg:
        return _leg(request, prefill, transfer_id)

    def decode_leg(
        self,
        request: CompletionRequest,
        prefill: Worker,
        decode: Worker,
        transfer_id: int,
        answer: PrefillAnswer | None,
    ) -> Leg:
        return _leg(request, prefill, transfer_id)


def _leg(request: CompletionRequest, prefill: Worker, transfer_id: int) -> Leg:
    host = msgspec.json.encode(f"[{prefill.host}]" if ":" in prefill.host else prefill.host)
    port = b"%d" % (prefill.bootstrap_port or _BOOTSTRAP_PORT)
    room = b"%d" % transfer_id
    choices = max(request.fields.n or 1, 1)
    if choices > 1 or is_batch(request):
        # SGLang takes the room of prompt i from the list's entry i, and needs an entry for every prompt; its own router
        # sends one for every answer. A list this long suits both. A single room SGLang expands by counting up.
        count = prompt_count(request) * choices
        if count <= _LIST_LIMIT:
            room = msgspec.json.encode([(transfer_id + number) % _ROOM_LIMIT for number in range(count)])
            host, port = (b"[%b]" % b",".join([value] * count) for value in (host, port))
    return Leg(request.with_members(bootstrap_host=host, bootstrap_port=port, bootstrap_room=room))
