"""Workers and requests that the tests of all adapters share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dolphin_router.adapters import ADAPTERS, EngineAdapter
from dolphin_router.completion_request import CompletionRequest
from dolphin_router.worker import Worker

CompletionBuilder = Callable[..., CompletionRequest]

FACTS: dict[str, bytes] = {
    "vllm-mooncake": b'{"0": {"engine_id": "engine-a", "worker_addr": {"0": {"0": "tcp://10.0.0.1:1"}}}}',
    "atom": b'{"tp_size": 8, "dp_size": 4, "kv_role": "kv_producer", "handshake_port": 6301}',
}


@pytest.fixture(params=sorted(ADAPTERS))
def adapter(request: pytest.FixtureRequest) -> EngineAdapter:
    """Every adapter in turn."""
    adapter: EngineAdapter = ADAPTERS[request.param]
    return adapter


@pytest.fixture
def prefill_for() -> Callable[[EngineAdapter], Worker]:
    """Return a prefill worker that has answered the adapter's probe."""

    def build(adapter: EngineAdapter) -> Worker:
        facts = adapter.facts(FACTS[adapter.name]) if adapter.name in FACTS else {}
        return Worker(role="prefill", host="10.0.0.1", port=8100, facts=facts)

    return build


@pytest.fixture
def decode() -> Worker:
    ports = {"lmcache_init_ports": (7300, 7301), "lmcache_alloc_ports": (7400, 7401)}
    return Worker(role="decode", host="10.0.0.2", port=8200, facts=ports)


@pytest.fixture
def chat() -> CompletionBuilder:
    """Return a chat request with these members besides its messages."""

    def build(**members: Any) -> CompletionRequest:
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], **members}
        return CompletionRequest(msgspec.json.encode(body), is_chat=True)

    return build


@pytest.fixture
def completion() -> CompletionBuilder:
    """Return a completion request with this prompt and these members."""

    def build(prompt: Any = "hello", **members: Any) -> CompletionRequest:
        return CompletionRequest(msgspec.json.encode({"model": "m", "prompt": prompt, **members}), is_chat=False)

    return build
