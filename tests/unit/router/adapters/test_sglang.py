"""SGLang: the same body to both workers, with a room to meet in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dolphin_router.adapters.base import LegOrder
from dolphin_router.adapters.sglang import SglangAdapter
from dolphin_router.completion_request import CompletionRequest
from dolphin_router.worker import Worker

ADAPTER = SglangAdapter()
PREFILL = Worker(role="prefill", host="10.0.0.1", port=8100)
LAST = 2**63 - 1


def _bootstrap(request: CompletionRequest, transfer_id: int, prefill: Worker = PREFILL) -> tuple[Any, Any, Any]:
    decode = Worker(role="decode", host="10.0.0.2", port=8200)
    sent = ADAPTER.prefill_leg(request, prefill, decode, transfer_id)
    assert sent == ADAPTER.decode_leg(request, prefill, decode, transfer_id, None)
    body = msgspec.json.decode(sent.body)
    return body["bootstrap_host"], body["bootstrap_port"], body["bootstrap_room"]


def test_both_workers_get_the_same_room(chat: Callable[..., CompletionRequest]) -> None:
    assert ADAPTER.order is LegOrder.CONCURRENT
    assert _bootstrap(chat(max_tokens=500, stream=True), LAST) == ("10.0.0.1", 8998, LAST)


def test_nothing_is_clamped(chat: Callable[..., CompletionRequest], decode: Worker) -> None:
    request = chat(max_tokens=500, stream=True, stream_options={"include_usage": True}, logprobs=True, min_tokens=3)
    assert ADAPTER.prefill_leg(request, PREFILL, decode, 1).body.startswith(request.body[:-1])


def test_the_bootstrap_server_is_where_the_worker_says(chat: Callable[..., CompletionRequest]) -> None:
    worker = Worker(role="prefill", host="fd00::1", port=8100, bootstrap_port=9001)
    assert _bootstrap(chat(), 5, worker) == ("[fd00::1]", 9001, 5)


@pytest.mark.parametrize(
    ("prompt", "n", "count"),
    [(["a", "b", "c"], None, 3), (["a"], None, 1), ([[1, 2], [3]], 1, 2), ("a", 3, 3), (["a", "b"], 2, 4)],
)
def test_batches_and_several_choices_have_lists_of_one_length(
    completion: Callable[..., CompletionRequest], prompt: Any, n: int | None, count: int
) -> None:
    hosts, ports, rooms = _bootstrap(completion(prompt, **({} if n is None else {"n": n})), LAST)
    assert hosts == ["10.0.0.1"] * count
    assert ports == [8998] * count
    assert len(rooms) == len(set(rooms)) == count
    assert all(0 <= room <= LAST for room in rooms)


@pytest.mark.parametrize("prompt", ["a", [1, 2, 3]])
def test_one_prompt_has_one_room(completion: Callable[..., CompletionRequest], prompt: Any) -> None:
    assert _bootstrap(completion(prompt), 7)[2] == 7


def test_a_client_cannot_make_the_lists_huge(chat: Callable[..., CompletionRequest]) -> None:
    assert _bootstrap(chat(n=10**15), 7) == ("10.0.0.1", 8998, 7)
