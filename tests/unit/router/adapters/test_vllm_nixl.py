"""vLLM with NIXL: parameters pass from the prefill worker's answer to the decode worker untouched."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from dolphin_router.adapters.answer_edits import CachedTokensReplaced
from dolphin_router.adapters.base import PrefillAnswer
from dolphin_router.adapters.vllm_nixl import VllmNixlAdapter
from dolphin_router.completion_request import CompletionRequest
from dolphin_router.worker import Worker

OLD = (
    b'{"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [1, 2], "remote_engine_id": "e", '
    b'"remote_host": "10.0.0.1", "remote_port": 5600, "tp_size": 1}'
)
NEW = (
    b'{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[],[1,2]],"remote_engine_id":"e",'
    b'"remote_request_id":"r","remote_host":"10.0.0.1","remote_port":5600,"tp_size":1,"dcp_size":1,"pp_size":1,'
    b'"remote_num_tokens":100,"remote_blocks_expiry_time":1732.50,"remote_registration_generation":0,'
    b'"transfer_mode":"pull","remote_prefill_cached_tokens":48}'
)
ADAPTER = VllmNixlAdapter()
PREFILL = Worker(role="prefill", host="10.0.0.1", port=8100)


def _answer(parameters: bytes, finish_reason: bytes = b"length", usage: bytes = b'{"prompt_tokens":100}') -> bytes:
    choice = b'{"index":0,"message":{"content":"{\\"kv_transfer_params\\":1}"},"finish_reason":"%b"}' % finish_reason
    return b'{"id":"x","choices":[%b],"usage":%b,"kv_transfer_params": %b }' % (choice, usage, parameters)


def test_the_prefill_worker_is_asked_to_keep_its_blocks(chat: Callable[..., CompletionRequest], decode: Worker) -> None:
    leg = ADAPTER.prefill_leg(chat(), PREFILL, decode, 1)
    assert msgspec.json.decode(leg.body)["kv_transfer_params"] == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    assert leg.headers == ()


@pytest.mark.parametrize("finish_reason", [b"length", b"stop"])
@pytest.mark.parametrize("parameters", [OLD, NEW], ids=["0.11.0", "0.33.0"])
def test_parameters_pass_byte_for_byte(
    chat: Callable[..., CompletionRequest], decode: Worker, parameters: bytes, finish_reason: bytes
) -> None:
    answer = ADAPTER.read_prefill_answer(_answer(parameters, finish_reason))
    assert answer.transfer_parameters == parameters
    request = chat(max_tokens=300, n=2, stream=True)
    leg = ADAPTER.decode_leg(request, PREFILL, decode, 1, answer)
    assert leg.body == request.body[:-1] + b',"kv_transfer_params":' + parameters + b"}"


@pytest.mark.parametrize(
    "parameters",
    [
        b"null",
        b'{"do_remote_prefill":true,"remote_block_ids":null}',
        b'{"do_remote_prefill":true}',
        b'{"do_remote_prefill":true,"remote_block_ids":[]}',
        b'{"do_remote_prefill":true,"remote_block_ids":[[], [ ]]}',
    ],
)
def test_without_blocks_there_is_nothing_to_ship(
    chat: Callable[..., CompletionRequest], decode: Worker, parameters: bytes
) -> None:
    answer = ADAPTER.read_prefill_answer(_answer(parameters))
    assert answer.transfer_parameters is None
    assert ADAPTER.decode_leg(chat(), PREFILL, decode, 1, answer).body == chat().body
    assert ADAPTER.release_leg(chat(), PREFILL, decode, answer) is None
    assert ADAPTER.answer_edit(chat(), answer) is None


def test_the_release_leg_takes_the_blocks_for_one_token(chat: Callable[..., CompletionRequest], decode: Worker) -> None:
    request = chat(max_tokens=300, stream=True, stream_options={"include_usage": True}, cache_salt="s")
    leg = ADAPTER.release_leg(request, PREFILL, decode, PrefillAnswer(NEW, None))
    assert leg is not None
    body = msgspec.json.decode(leg.body, type=dict[str, msgspec.Raw])
    assert bytes(body["kv_transfer_params"]) == NEW
    assert {name: msgspec.json.decode(body[name]) for name in ("max_tokens", "stream", "cache_salt")} == {
        "max_tokens": 1,
        "stream": False,
        "cache_salt": "s",
    }
    assert "stream_options" not in body


DETAILS = b'{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":32}}'


@pytest.mark.parametrize(
    ("parameters", "usage", "cached_tokens"),
    [(NEW, b"null", 48), (NEW, DETAILS, 48), (OLD, DETAILS, 32), (OLD, b'{"prompt_tokens_details":null}', None)],
)
def test_cached_tokens_of_the_prefill_worker_are_known(
    parameters: bytes, usage: bytes, cached_tokens: int | None
) -> None:
    assert ADAPTER.read_prefill_answer(_answer(parameters, usage=usage)).cached_tokens == cached_tokens


def test_usage_is_edited_only_where_the_decode_worker_cannot_know(chat: Callable[..., CompletionRequest]) -> None:
    def edit(answer: PrefillAnswer | None) -> object:
        return ADAPTER.answer_edit(chat(), answer)

    assert edit(None) is None
    assert edit(ADAPTER.read_prefill_answer(_answer(NEW, usage=DETAILS))) is None
    old = edit(ADAPTER.read_prefill_answer(_answer(OLD, usage=DETAILS)))
    assert isinstance(old, CachedTokensReplaced)
    body = b'{"usage":{"prompt_tokens_details":{"cached_tokens":99}}}'
    assert old.whole(body) == b'{"usage":{"prompt_tokens_details":{"cached_tokens":32}}}'
