"""vLLM with Mooncake: two legs at once, joined by a transfer id and the prefill engine's id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dolphin_router.adapters.base import LegOrder, PrefillAnswer, Probe
from dolphin_router.adapters.vllm_mooncake import VllmMooncakeAdapter
from dolphin_router.completion_request import CompletionRequest
from dolphin_router.worker import Worker

ADAPTER = VllmMooncakeAdapter()
ONE = b'{"0": {"engine_id": "engine-a", "worker_addr": {"0": {"0": "tcp://10.0.0.1:1"}}}}'
TWO = b'{"1": {"engine_id": "engine-b", "worker_addr": {}}, "0": {"engine_id": "engine-a", "worker_addr": {}}}'


def _prefill(answer: bytes = ONE, **settings: Any) -> Worker:
    return Worker(role="prefill", **{"host": "10.0.0.1", "port": 8100, **settings}, facts=ADAPTER.facts(answer))


def _parameters(body: bytes) -> dict[str, Any]:
    parameters: dict[str, Any] = msgspec.json.decode(body)["kv_transfer_params"]
    return parameters


def test_prefill_workers_are_asked_for_their_engine_ids(decode: Worker) -> None:
    assert ADAPTER.order is LegOrder.CONCURRENT
    assert ADAPTER.probe(_prefill()) == Probe(8998, "/query")
    assert ADAPTER.probe(_prefill(bootstrap_port=9000)) == Probe(9000, "/query")
    assert ADAPTER.probe(decode) is None


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"0": {}}', b'{"zero": {"engine_id": "a"}}', b'{"0": "a"}'])
def test_an_answer_without_engine_ids_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="answer to /query"):
        ADAPTER.facts(body)


def test_both_legs_meet_by_the_transfer_id(chat: Callable[..., CompletionRequest], decode: Worker) -> None:
    request, prefill = chat(max_tokens=20), _prefill()
    sent = ADAPTER.prefill_leg(request, prefill, decode, 255)
    received = ADAPTER.decode_leg(request, prefill, decode, 255, None)
    transfer_id = "xfer-00000000000000ff"
    assert _parameters(sent.body) == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "transfer_id": transfer_id,
    }
    assert _parameters(received.body) == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "transfer_id": transfer_id,
        "remote_bootstrap_addr": "http://10.0.0.1:8998",
        "remote_engine_id": "engine-a",
    }
    assert sent.headers == received.headers == ()
    assert _parameters(ADAPTER.prefill_leg(request, prefill, decode, 256).body)["transfer_id"] != transfer_id


def test_the_bootstrap_address_of_an_ipv6_worker_has_brackets(
    chat: Callable[..., CompletionRequest], decode: Worker
) -> None:
    leg = ADAPTER.decode_leg(chat(), _prefill(host="fd00::1", bootstrap_port=9000), decode, 1, None)
    assert _parameters(leg.body)["remote_bootstrap_addr"] == "http://[fd00::1]:9000"


@pytest.mark.parametrize(("transfer_id", "rank", "engine"), [(6, b"0", "engine-a"), (7, b"1", "engine-b")])
def test_the_rank_that_is_named_to_decode_is_the_one_that_prefills(
    chat: Callable[..., CompletionRequest], decode: Worker, transfer_id: int, rank: bytes, engine: str
) -> None:
    prefill = _prefill(TWO)
    sent = ADAPTER.prefill_leg(chat(), prefill, decode, transfer_id)
    assert sent.headers == ((b"x-data-parallel-rank", rank),)
    received = ADAPTER.decode_leg(chat(), prefill, decode, transfer_id, None)
    assert _parameters(received.body)["remote_engine_id"] == engine
    assert received.headers == ()


def test_usage_reports_the_prefill_workers_cached_tokens(chat: Callable[..., CompletionRequest]) -> None:
    edit = ADAPTER.answer_edit(chat(), PrefillAnswer(None, None))
    assert edit is not None
    edit.prefill_answered(ADAPTER.read_prefill_answer(b'{"usage":{"prompt_tokens_details":{"cached_tokens":3}}}'))
    body = b'{"usage":{"prompt_tokens_details":{"cached_tokens":99}}}'
    assert edit.whole(body) == b'{"usage":{"prompt_tokens_details":{"cached_tokens":3}}}'
    assert ADAPTER.answer_edit(chat(), None) is None
