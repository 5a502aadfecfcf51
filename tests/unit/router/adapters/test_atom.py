"""ROCm ATOM: parameters completed with what the prefill engine said of itself, and none of its own for clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dolphin_router.adapters.atom import AtomAdapter
from dolphin_router.adapters.base import PrefillAnswer, Probe
from dolphin_router.completion_request import CompletionRequest
from dolphin_router.worker import Worker

ADAPTER = AtomAdapter()
INFO = b'{"tp_size": 8, "dp_size": 4, "kv_role": "kv_producer", "handshake_port": 6301}'
PREFILL = Worker(role="prefill", host="10.0.0.1", port=8100, facts=ADAPTER.facts(INFO))
PARAMETERS = (
    b'{"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [4,  5], "remote_engine_id": "None", '
    b'"remote_handshake_port": 6301, "tp_size": 8, "dp_rank": %b, "transfer_id": 17, "first_token_id": 921}'
)


def _completed(parameters: bytes, decode: Worker, request: CompletionRequest) -> dict[str, bytes]:
    answer = ADAPTER.read_prefill_answer(b'{"choices":[],"kv_transfer_params":%b}' % parameters)
    body = ADAPTER.decode_leg(request, PREFILL, decode, 1, answer).body
    sent = msgspec.json.decode(body, type=dict[str, msgspec.Raw])["kv_transfer_params"]
    return {name: bytes(value) for name, value in msgspec.json.decode(sent, type=dict[str, msgspec.Raw]).items()}


def test_only_prefill_workers_are_asked(decode: Worker) -> None:
    assert ADAPTER.probe(PREFILL) == Probe(8100, "/kv_transfer_info")
    assert ADAPTER.probe(decode) is None
    assert ADAPTER.probe(Worker(role="aggregated", host="h", port=1)) is None


@pytest.mark.parametrize("role", ["kv_consumer", "kv_both", ""])
def test_a_prefill_worker_must_be_a_producer(role: str) -> None:
    with pytest.raises(ValueError, match="must be started with kv_role kv_producer"):
        ADAPTER.facts(msgspec.json.encode({"tp_size": 1, "kv_role": role}))


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"tp_size": "8", "kv_role": "kv_producer"}', b'{"tp_size": 8}'])
def test_an_answer_without_sizes_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="answer to /kv_transfer_info"):
        ADAPTER.facts(body)


def test_the_prefill_worker_is_asked_for_nothing_else(chat: Callable[..., CompletionRequest], decode: Worker) -> None:
    body: dict[str, Any] = msgspec.json.decode(ADAPTER.prefill_leg(chat(), PREFILL, decode, 1).body)
    assert body["kv_transfer_params"] == {"do_remote_decode": True, "do_remote_prefill": False}
    assert "data_parallel_rank" not in body


def test_parameters_are_completed(chat: Callable[..., CompletionRequest], decode: Worker) -> None:
    sent = _completed(PARAMETERS % b"3", decode, chat(max_tokens=9))
    told = msgspec.json.decode(PARAMETERS % b"3", type=dict[str, msgspec.Raw])
    assert {name: sent.pop(name) for name in ("remote_tp_size", "remote_dp_size", "remote_dp_rank")} == {
        "remote_tp_size": b"8",
        "remote_dp_size": b"4",
        "remote_dp_rank": b"3",
    }
    assert sent == {name: bytes(value) for name, value in told.items()}


@pytest.mark.parametrize("rank", [b"null", b'"None"', b"true"])
def test_a_rank_that_is_no_number_is_not_passed_on(
    chat: Callable[..., CompletionRequest], decode: Worker, rank: bytes
) -> None:
    assert "remote_dp_rank" not in _completed(PARAMETERS % rank, decode, chat())


def test_an_orphaned_cache_is_fetched_with_the_same_parameters(
    chat: Callable[..., CompletionRequest], decode: Worker
) -> None:
    assert not ADAPTER.prefill_can_be_cancelled
    request, answer = chat(max_tokens=99, stream=True), PrefillAnswer(PARAMETERS % b"3", None)
    release = ADAPTER.release_leg(request, PREFILL, decode, answer)
    assert release is not None
    body = msgspec.json.decode(release.body)
    remote = msgspec.json.decode(ADAPTER.decode_leg(request, PREFILL, decode, 1, answer).body)
    assert (body["max_tokens"], body["stream"]) == (1, False)
    assert body["kv_transfer_params"] == remote["kv_transfer_params"]


def test_cached_tokens_of_the_prefill_worker_are_known() -> None:
    body = b'{"usage":{},"kv_transfer_params":{"remote_block_ids":[],"prefix_cache_hit_tokens":64}}'
    assert ADAPTER.read_prefill_answer(body).cached_tokens == 64


@pytest.mark.parametrize("remote", [True, False])
def test_clients_do_not_see_the_decode_workers_parameters(chat: Callable[..., CompletionRequest], remote: bool) -> None:
    edit = ADAPTER.answer_edit(chat(), PrefillAnswer(PARAMETERS % b"3", None) if remote else None)
    assert edit is not None
    body = b'{"choices":[{"finish_reason":"max_tokens"}],"kv_transfer_params":{"remote_host":"10.0.0.2"}}'
    expected = b'{"choices":[{"finish_reason":"max_tokens"}]}'
    assert edit.whole(body) == expected
    assert edit.events(b"data: %b\n\n" % body) == b"data: %b\n\n" % expected
