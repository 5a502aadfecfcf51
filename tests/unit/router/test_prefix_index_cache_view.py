"""Cached tokens come from events where they are exact, else from the router's own history."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import pytest

from dolphin_router.completion_request import CompletionRequest
from dolphin_router.kv_events import EventIndex, decode_batch
from dolphin_router.prefix_index import CacheView, PrefixIndex, PromptPrefix

WORKERS = ["a:1", "b:1"]
TOKENS = tuple(range(1000, 3000))


def _view(events: EventIndex | None = None) -> CacheView:
    return CacheView(PrefixIndex(capacity_tokens=100_000), events)


def _chat(view: CacheView, text: str, *, prompt_tokens: int, **members: object) -> PromptPrefix:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **members}
    request = CompletionRequest(json.dumps(body, separators=(",", ":")).encode(), is_chat=True)
    return view.prefix(request, prompt_tokens=prompt_tokens)


def _completion(view: CacheView, tokens: Sequence[int], **members: object) -> PromptPrefix:
    request = CompletionRequest(json.dumps({"model": "m", "prompt": list(tokens), **members}).encode(), is_chat=False)
    return view.prefix(request, prompt_tokens=len(tokens), token_ids=tokens)


def _stored(tokens: Sequence[int], **fields: object) -> bytes:
    blocks = len(tokens) // 16
    event = {
        "type": "BlockStored",
        "block_hashes": [hash((fields.get("lora_name"), tuple(tokens[: (block + 1) * 16]))) for block in range(blocks)],
        "token_ids": list(tokens[: blocks * 16]),
        "block_size": 16,
        **fields,
    }
    return msgspec.msgpack.encode([0.0, [event]])


def _events() -> EventIndex:
    events = EventIndex()
    events.watch("a:1")
    events.begin("a:1")
    return events


def test_text_is_found_where_it_was_sent_in_proportion_to_its_bytes() -> None:
    view = _view()
    prefix = _chat(view, "x" * 4000, prompt_tokens=1000)
    assert view.cached_tokens(prefix, WORKERS, now_s=0.0) == [0, 0]
    view.sent(prefix, ["b:1"], now_s=0.0)
    (nothing, held) = view.cached_tokens(prefix, WORKERS, now_s=0.0)
    assert nothing == 0
    assert 850 < held <= 1000  # 3,584 of 4,034 bytes
    view.forget("b:1")
    assert view.cached_tokens(prefix, WORKERS, now_s=0.0) == [0, 0]


def test_never_more_than_the_prompt_is_held() -> None:
    view = _view()
    prefix = _chat(view, "x" * 4000, prompt_tokens=1)
    view.sent(prefix, WORKERS, now_s=0.0)
    assert all(held <= 1 for held in view.cached_tokens(prefix, WORKERS, now_s=0.0))


def test_the_same_text_under_another_salt_is_not_found() -> None:
    view = _view()
    view.sent(_chat(view, "x" * 4000, prompt_tokens=1000, cache_salt="mine"), WORKERS, now_s=0.0)
    other = _chat(view, "x" * 4000, prompt_tokens=1000, cache_salt="yours")
    assert view.cached_tokens(other, WORKERS, now_s=0.0) == [0, 0]


def test_token_ids_are_found_by_history_on_workers_without_events() -> None:
    view = _view(_events())
    prefix = _completion(view, TOKENS)
    view.sent(prefix, ["b:1"], now_s=0.0)
    exact, estimated = view.cached_tokens(prefix, WORKERS, now_s=0.0)
    assert exact == 0
    assert 1600 < estimated <= 2000


def test_events_overrule_history_on_workers_that_publish_them() -> None:
    events = _events()
    events.apply("a:1", decode_batch(_stored(TOKENS[:320])))
    view = _view(events)
    prefix = _completion(view, TOKENS)
    assert view.cached_tokens(prefix, WORKERS, now_s=0.0) == [320, 0]
    view.sent(prefix, ["a:1"], now_s=0.0)
    assert view.cached_tokens(prefix, WORKERS, now_s=1.0) == [2000, 0]  # on its way
    assert view.cached_tokens(prefix, WORKERS, now_s=3.0) == [320, 0]  # evicted, or never came


def test_when_messages_were_missed_history_still_counts() -> None:
    events = _events()
    view = _view(events)
    prefix = _completion(view, TOKENS)
    view.sent(prefix, ["a:1"], now_s=0.0)
    events.forget("a:1")
    assert view.cached_tokens(prefix, ["a:1"], now_s=10.0)[0] > 1600
    events.apply("a:1", decode_batch(_stored(TOKENS)))
    assert view.cached_tokens(prefix, ["a:1"], now_s=10.0) == [2000]


@pytest.mark.parametrize("medium", [None, "CPU"])
def test_history_ends_when_events_tell_that_all_blocks_are_cleared(medium: str | None) -> None:
    events = _events()
    view = _view(events)
    prefix = _chat(view, "x" * 4000, prompt_tokens=1000)
    view.sent(prefix, WORKERS, now_s=0.0)
    events.apply("a:1", decode_batch(msgspec.msgpack.encode([0.0, [["AllBlocksCleared", medium]]])))
    cleared, other = view.cached_tokens(prefix, WORKERS, now_s=0.0)
    assert other > 0
    assert cleared == (0 if medium is None else other)


def test_history_ends_when_an_engine_restarts() -> None:
    events = _events()
    view = _view(events)
    prefix = _chat(view, "x" * 4000, prompt_tokens=1000)
    view.sent(prefix, WORKERS, now_s=0.0)
    events.restarted("a:1")
    cleared, other = view.cached_tokens(prefix, WORKERS, now_s=0.0)
    assert cleared == 0
    assert other > 0


def test_the_request_names_salt_and_adapter() -> None:
    events = _events()
    events.apply("a:1", decode_batch(_stored(TOKENS[:32], lora_name="poet")))
    events.apply("a:1", decode_batch(_stored(TOKENS[:64], extra_keys=[["s"], None, None, None])))
    view = _view(events)
    assert view.cached_tokens(_completion(view, TOKENS), WORKERS, now_s=0.0) == [0, 0]
    assert view.cached_tokens(_completion(view, TOKENS, model="poet"), WORKERS, now_s=0.0) == [32, 0]
    assert view.cached_tokens(_completion(view, TOKENS, cache_salt="s"), WORKERS, now_s=0.0) == [64, 0]


def test_what_identifies_a_prompt_is_at_hand_for_the_record() -> None:
    view = _view()
    prefix = _chat(view, "x" * 4000, prompt_tokens=1000)
    assert len(prefix.keys) == 7
    assert b"m" in prefix.seed
    short = _chat(view, "hi", prompt_tokens=3)
    assert short.keys == ()
    assert view.cached_tokens(short, WORKERS, now_s=0.0) == [0, 0]
