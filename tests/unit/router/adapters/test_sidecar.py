"""llm-d's sidecar: a header names the prefill worker, or its absence means local."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dolphin_router.adapters.base import LegOrder
from dolphin_router.adapters.sidecar import SidecarAdapter
from dolphin_router.completion_request import CompletionRequest
from dolphin_router.worker import Worker

ADAPTER = SidecarAdapter()


@pytest.mark.parametrize(("host", "value"), [("10.0.0.1", b"10.0.0.1:8100"), ("fd00::1", b"[fd00::1]:8100")])
def test_only_remote_requests_name_a_prefill_worker(
    chat: Callable[..., CompletionRequest], decode: Worker, host: str, value: bytes
) -> None:
    request, prefill = chat(stream=True), Worker(role="prefill", host=host, port=8100)
    remote = ADAPTER.decode_leg(request, prefill, decode, 1, None)
    assert remote.body == request.body
    assert remote.headers == ((b"x-prefiller-host-port", value),)
    assert ADAPTER.local_leg(request).headers == ()


def test_the_sidecar_alone_talks_to_prefill_workers(chat: Callable[..., CompletionRequest], decode: Worker) -> None:
    assert ADAPTER.order is LegOrder.DECODE_ONLY
    with pytest.raises(NotImplementedError):
        ADAPTER.prefill_leg(chat(), decode, decode, 1)
