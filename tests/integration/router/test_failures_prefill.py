"""A prefill worker fails before, within or by its answer."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from failure_scene import (
    NumberedPrefill,
    Refusing,
    answering,
    decode_normally,
    die,
    dying_within,
    hang,
    run,
    scene,
)
from scripted_worker import Script

HALF_AN_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{"
FAILURES: dict[str, tuple[Script | Refusing, int]] = {
    "refuses": (Refusing(), 502),
    "answers 500": (answering(500), 500),
    "answers 502": (answering(502), 502),
    "answers 503": (answering(503, b"busy", (b"retry-after", b"9")), 503),
    "answers 504": (answering(504), 504),
    "dies after it accepted": (die, 502),
    "dies within its answer": (dying_within(HALF_AN_ANSWER), 502),
    "does not speak HTTP": (dying_within(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), 502),
}
TRIED_ONCE: dict[str, tuple[Script | Refusing, int]] = {
    "hangs": (hang, 504),
    "answers no JSON": (answering(200, b"<html>"), 502),
    "answers no object": (answering(200, b"[]"), 502),
    "names the KV cache by a string": (answering(200, b'{"kv_transfer_params": "kv"}'), 502),
    "answers 204": (answering(204, b""), 502),
    "answers 302": (answering(302, b"", (b"location", b"http://elsewhere")), 502),
}
SETTINGS: dict[str, Any] = {"timeouts": {"prefill_s": 0.3}}


@pytest.mark.parametrize("name", [*FAILURES, *TRIED_ONCE])
@pytest.mark.parametrize("stream", [False, True])
def test_the_client_is_told_when_the_only_prefill_worker_fails(name: str, stream: bool) -> None:
    script, status = (FAILURES | TRIED_ONCE)[name]

    async def play() -> None:
        async with scene(prefill=[script], **SETTINGS) as s:
            answer = await s.complete(stream=stream)
            assert answer.status == status
            assert answer.json()["error"]["message"] if status != 503 else answer.body == b"busy"
            assert not s.decodes[0].requests
            await s.assert_at_rest()
            (record,) = s.records
            assert record.status == status
            assert record.outcome == ("rejected" if status in (500, 503, 504) and name != "hangs" else record.outcome)
            assert record.outcome in ("rejected", "failed")
            assert record.retries == 0
            assert len(record.errors) == 1

    run(play())


@pytest.mark.parametrize("name", FAILURES)
def test_another_prefill_worker_takes_over(name: str) -> None:
    script, _ = FAILURES[name]

    async def play() -> None:
        async with scene(prefill=[script, NumberedPrefill()], **SETTINGS) as s:
            answer = await s.complete()
            assert (answer.status, answer.json()) == (200, {"choices": [{"text": "xxx"}]})
            assert len(s.kv_caches_read()) == 1
            await s.assert_at_rest()
            (record,) = s.records
            assert (record.outcome, record.retries, record.action_taken) == ("completed", 1, "remote")
            assert record.prefill_worker == s.prefills[-1].url.removeprefix("http://")

    run(play())


@pytest.mark.parametrize("name", TRIED_ONCE)
def test_a_failure_that_took_its_time_or_hides_a_fault_is_not_repeated(name: str) -> None:
    script, status = TRIED_ONCE[name]

    async def play() -> None:
        async with scene(prefill=[script, NumberedPrefill()], **SETTINGS) as s:
            assert (await s.complete()).status == status
            assert not s.prefills[1].requests
            assert not s.decodes[0].requests
            await s.assert_at_rest()

    run(play())


@pytest.mark.parametrize("name", FAILURES)
def test_when_both_prefill_workers_fail_the_last_failure_counts(name: str) -> None:
    script, _ = FAILURES[name]
    scripts = [script, answering(503, b"second", (b"retry-after", b"7"))]

    async def play() -> None:
        async with scene(prefill=scripts, prefill_retries=5, **SETTINGS) as s:
            answer = await s.complete()
            assert (answer.status, answer.body, answer.values(b"retry-after")) == (503, b"second", [b"7"])
            assert not s.decodes[0].requests
            # Over a connection that had been idle, the first worker may have been asked twice.
            assert len(s.prefills[-1].requests) == 1
            await s.assert_at_rest()

    run(play())


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", [*FAILURES, *TRIED_ONCE])
def test_local_prefill_takes_over_where_the_operator_wants_it_and_says_so(name: str, workers: int) -> None:
    script, _ = (FAILURES | TRIED_ONCE)[name]

    async def play() -> None:
        async with scene(prefill=[script] * workers, on_prefill_error="local", **SETTINGS) as s:
            answer = await s.complete()
            assert answer.status == 200
            assert answer.values(b"x-dolphin-reason") == [b"prefill_failed"]
            (leg,) = s.decodes[0].requests
            assert "kv_transfer_params" not in leg.json()
            await s.assert_at_rest()
            (record,) = s.records
            assert (record.outcome, record.action_taken, record.reason) == ("completed", "local", "prefill_failed")
            assert record.prefill_worker is None

    run(play())


@pytest.mark.parametrize("on_prefill_error", ["fail", "local"])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 429])
def test_what_a_prefill_worker_refuses_is_refused_unchanged(
    status: int, workers: int, on_prefill_error: Literal["fail", "local"]
) -> None:
    body = b'{"error": {"message": "as  it\\u0020came", "code": %d}}' % status
    headers = [(b"retry-after", b"17"), (b"x-engine", b"vllm")]

    async def play() -> None:
        script = answering(status, body, *headers)
        async with scene(prefill=[script] * workers, on_prefill_error=on_prefill_error) as s:
            answer = await s.complete(stream=True)
            assert (answer.status, answer.body) == (status, body)
            assert answer.values(b"retry-after") == [b"17"]
            assert answer.values(b"x-engine") == [b"vllm"]
            assert answer.values(b"content-type") == [b"application/json"]
            assert not s.decodes[0].requests
            assert sum(len(worker.requests) for worker in s.prefills) == 1
            await s.assert_at_rest()
            assert (s.records[0].outcome, s.records[0].status) == ("rejected", status)

    run(play())


@pytest.mark.parametrize(
    "body",
    [
        {"choices": [{"text": "x"}]},
        {"choices": [{"text": "x"}], "kv_transfer_params": None},
        {"choices": [{"text": "x"}], "kv_transfer_params": {"do_remote_prefill": True, "remote_block_ids": None}},
        {"choices": [{"text": "x"}], "kv_transfer_params": {"do_remote_prefill": True, "remote_block_ids": [[]]}},
    ],
)
def test_the_decode_worker_computes_what_a_prefill_worker_kept_nothing_of(body: dict[str, Any]) -> None:
    async def play() -> None:
        async with scene(prefill=[answering(200, json.dumps(body).encode())]) as s:
            assert (await s.complete()).status == 200
            (leg,) = s.decodes[0].requests
            assert "kv_transfer_params" not in leg.json()
            await s.assert_at_rest()
            assert (s.records[0].outcome, s.records[0].reason) == ("completed", "nothing_to_transfer")

    run(play())


def test_a_worker_that_refuses_is_left_alone_until_it_answers_a_probe() -> None:
    async def play() -> None:
        async with scene(prefill=[Refusing(), NumberedPrefill()], decode=[decode_normally]) as s:
            for _ in range(5):
                assert (await s.complete()).status == 200
            assert sum(record.retries for record in s.records) == 1
            assert [state.is_ready for state in s.router.fleet.workers] == [False, True, True]

    run(play())
