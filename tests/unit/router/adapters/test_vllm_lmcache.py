"""vLLM with LMCache: the prefill worker is told where to push, and the router waits for the notices that it has."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from dolphin_router.adapters import EngineAdapter
from dolphin_router.adapters.vllm_lmcache import VllmLmcacheAdapter
from dolphin_router.completion_request import CompletionRequest
from dolphin_router.worker import Worker

ADAPTER = VllmLmcacheAdapter()
PREFILL = Worker(role="prefill", host="10.0.0.1", port=8100)


def test_the_prefill_worker_is_told_where_to_push(chat: Callable[..., CompletionRequest], decode: Worker) -> None:
    body = msgspec.json.decode(ADAPTER.prefill_leg(chat(max_tokens=50), PREFILL, decode, 2**63 - 1).body)
    assert body["max_tokens"] == 1
    assert body["kv_transfer_params"] == {
        "disagg_spec": {
            "req_id": "9223372036854775807",
            "receiver_host": "10.0.0.2",
            "receiver_init_port": [7300, 7301],
            "receiver_alloc_port": [7400, 7401],
        }
    }


def test_the_decode_worker_gets_the_clients_request(chat: Callable[..., CompletionRequest], decode: Worker) -> None:
    request = chat(max_tokens=50, stream=True)
    answer = ADAPTER.read_prefill_answer(b'{"choices":[],"kv_transfer_params":null}')
    assert answer.transfer_parameters is not None
    assert ADAPTER.decode_leg(request, PREFILL, decode, 1, answer).body == request.body


def test_a_notice_from_each_rank_is_awaited(decode: Worker) -> None:
    assert ADAPTER.notices_awaited(decode) == 2
    notice = msgspec.msgpack.encode({"type": "ProxyNotif", "req_id": str(2**62)})
    assert ADAPTER.read_notice(notice) == 2**62


@pytest.mark.parametrize("message", [{"type": "AllocRequest", "req_id": "1"}, {"type": "ProxyNotif", "req_id": "x"}, 3])
def test_other_messages_are_refused(message: object) -> None:
    with pytest.raises(ValueError, match="not an LMCache notice"):
        ADAPTER.read_notice(msgspec.msgpack.encode(message))


def test_other_engines_send_no_notices(adapter: EngineAdapter, decode: Worker) -> None:
    if adapter.name != ADAPTER.name:
        assert adapter.notices_awaited(decode) == 0
        with pytest.raises(ValueError, match="sends no notices"):
            adapter.read_notice(b"\x80")


def test_the_release_leg_takes_the_cache_out_of_the_receive_buffer(
    chat: Callable[..., CompletionRequest], decode: Worker
) -> None:
    leg = ADAPTER.release_leg(chat(max_tokens=50), PREFILL, decode, ADAPTER.read_prefill_answer(b"{}"))
    assert leg is not None
    assert msgspec.json.decode(leg.body)["max_tokens"] == 1
    assert "kv_transfer_params" not in msgspec.json.decode(leg.body)
