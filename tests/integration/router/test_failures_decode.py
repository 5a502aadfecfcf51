"""A decode worker fails before, within or by its answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from failure_scene import (
    JSON,
    NumberedPrefill,
    Refusing,
    Scene,
    answering,
    completion,
    connected,
    decode_normally,
    die,
    dying_within,
    events,
    hang,
    is_release,
    kv_of,
    run,
    scene,
    stream_then,
)
from raw_client import CutAnswer
from router_under_test import until
from scripted_worker import LAST_CHUNK, Peer, Script, WorkerRequest, chunk

UNFINISHED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
STREAM_HEAD_ONLY = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
BEFORE_THE_FIRST_BYTE: dict[str, Script] = {
    "dies after it read the request": die,
    "dies within a whole answer": dying_within(UNFINISHED),
    "dies after the head of a stream": dying_within(STREAM_HEAD_ONLY),
    "does not speak HTTP": dying_within(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
}


def once(script: Script, then: Script = decode_normally) -> Script:
    """Return the script of a worker that does something for its first leg only; a release is none."""
    done: list[bool] = []

    async def play(request: WorkerRequest, peer: Peer) -> None:
        if done or is_release(request):
            await then(request, peer)
        else:
            done.append(True)
            await script(request, peer)

    return play


@pytest.mark.parametrize("stream", [False, True])
def test_another_decode_worker_takes_the_parameters_that_a_refusing_one_has_not_seen(stream: bool) -> None:
    async def play() -> None:
        async with scene(prefill=[NumberedPrefill()], decode=[Refusing(), decode_normally]) as s:
            answer = await s.complete(stream=stream)
            assert answer.status == 200
            assert events(answer.body)[-1] == b"[DONE]" if stream else answer.json()
            assert len(s.prefills[0].requests) == 1
            assert len(s.kv_caches_read()) == 1
            assert s.releases() == []
            assert s.router.plane.stranded_leases == 0
            await s.assert_at_rest()
            (record,) = s.records
            assert (record.outcome, record.retries) == ("completed", 1)
            assert record.decode_worker == s.decodes[0].url.removeprefix("http://")

    run(play())


def test_a_kv_cache_that_no_decode_worker_takes_is_counted() -> None:
    async def play() -> None:
        async with scene(prefill=[NumberedPrefill()], decode=[Refusing()]) as s:
            answer = await s.complete()
            assert answer.status == 502
            assert "the decode worker failed" in answer.json()["error"]["message"]
            await until(lambda: s.router.plane.stranded_leases == 1, "the stranded lease is counted")
            await s.assert_at_rest()
            assert (s.records[0].outcome, s.records[0].status, s.records[0].retries) == ("failed", 502, 0)

    run(play())


def test_a_kv_cache_is_released_by_another_worker_where_nothing_may_be_tried_again() -> None:
    async def play() -> None:
        workers = [Refusing(), decode_normally]
        async with scene(prefill=[NumberedPrefill()], decode=workers, decode_retries=0) as s:
            assert (await s.complete()).status == 502
            await until(lambda: len(s.releases()) == 1, "the release leg has come")
            assert s.kv_caches_read() == []
            await s.assert_at_rest()
            assert s.router.plane.stranded_leases == 0

    run(play())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", BEFORE_THE_FIRST_BYTE)
def test_a_request_starts_again_with_a_new_kv_cache_when_its_decode_worker_dies(name: str, stream: bool) -> None:
    async def play() -> None:
        script = BEFORE_THE_FIRST_BYTE[name]
        async with scene(prefill=[NumberedPrefill()], decode=[script, decode_normally]) as s:
            answer = await s.complete(stream=stream)
            assert answer.status == 200
            assert answer.body.endswith(b"data: [DONE]\n\n") if stream else answer.json()
            # The first one's may have been used and must not be used again; nobody can be asked.
            assert len(s.kv_caches_read()) == len(set(s.kv_caches_read())) == len(s.prefills[0].requests) >= 2
            assert s.releases() == []
            assert s.router.plane.stranded_leases == len(s.prefills[0].requests) - 1
            await s.assert_at_rest()
            assert s.records[0].outcome == "completed"
            assert s.records[0].stranded_leases == s.router.plane.stranded_leases

    run(play())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", BEFORE_THE_FIRST_BYTE)
@pytest.mark.parametrize("workers", [1, 2])
def test_the_client_is_told_by_a_status_while_it_has_seen_nothing(name: str, stream: bool, workers: int) -> None:
    async def play() -> None:
        script = BEFORE_THE_FIRST_BYTE[name]
        async with scene(prefill=[NumberedPrefill()], decode=[script] * workers) as s:
            answer = await s.complete(stream=stream)
            assert answer.status == 502
            assert answer.json()["error"]["type"] == "upstream_error"
            await s.assert_at_rest()
            assert (s.records[0].outcome, s.records[0].status) == ("failed", 502)
            assert len(s.kv_caches_read()) == s.records[0].stranded_leases

    run(play())


def test_the_only_worker_is_asked_again_when_it_closed_a_connection_that_had_been_idle() -> None:
    """Nothing need be wrong with it. But it may have read the request, so that the KV cache must be another one."""

    async def play() -> None:
        script = once(die)
        async with scene(prefill=[NumberedPrefill()], decode=[script], decode_retries=0) as s:
            # The connection of the probe is idle now.
            assert s.decodes[0].connections == 1
            assert (await s.complete()).status == 200
            assert len(s.kv_caches_read()) == 2
            await s.assert_at_rest()

    run(play())


@pytest.mark.parametrize("path", [b"/v1/completions", b"/v1/chat/completions"])
def test_a_stream_that_breaks_ends_with_an_error_event_and_without_done(path: bytes) -> None:
    async def play() -> None:
        decodes = [stream_then(die), decode_normally]
        async with scene(prefill=[NumberedPrefill()], decode=decodes, decode_retries=5) as s:
            answer = await s.complete(stream=True, path=path)
            assert answer.status == 200
            first, second, last = events(answer.body)
            assert b"error" not in first + second
            error = json.loads(last)["error"]
            assert (error["code"], error["type"]) == (502, "upstream_error")
            assert b"[DONE]" not in answer.body
            # Nothing is tried again after a byte was sent.
            assert not s.decodes[1].requests
            assert len(s.prefills[0].requests) == 1
            await s.assert_at_rest()
            assert (s.records[0].outcome, s.records[0].status) == ("failed", 200)

    run(play())


def test_an_event_that_was_cut_does_not_swallow_the_error() -> None:
    async def script(request: WorkerRequest, peer: Peer) -> None:
        await peer.start_stream()
        await peer.send(chunk(b'data: {"choices": [{"te'))
        peer.reset()

    async def play() -> None:
        async with scene(prefill=[NumberedPrefill()], decode=[script]) as s:
            answer = await s.complete(stream=True)
            assert json.loads(events(answer.body)[-1])["error"]["code"] == 502
            await s.assert_at_rest()

    run(play())


def test_a_stream_that_ends_without_its_last_chunk_is_not_complete() -> None:
    async def script(request: WorkerRequest, peer: Peer) -> None:
        await peer.start_stream()
        await peer.event()
        peer.close()

    async def play() -> None:
        async with scene(decode=[script]) as s:
            answer = await s.complete(stream=True)
            assert json.loads(events(answer.body)[-1])["error"]["code"] == 502
            await s.assert_at_rest()
            assert s.records[0].outcome == "failed"

    run(play())


def test_a_long_whole_answer_that_breaks_is_cut_and_not_completed() -> None:
    async def script(request: WorkerRequest, peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 3000000\r\n\r\n" + b" " * 2_000_000)
        peer.close()

    async def play() -> None:
        async with scene(prefill=[NumberedPrefill()], decode=[script]) as s:
            with pytest.raises((CutAnswer, ConnectionError)):
                await s.complete()
            assert len(s.prefills[0].requests) == 1
            await s.assert_at_rest()
            assert s.records[0].outcome == "failed"

    run(play())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 404, 413, 422, 429])
def test_what_a_decode_worker_refuses_is_refused_unchanged_and_its_kv_cache_is_freed(status: int, stream: bool) -> None:
    body = b'{"error": {"message": "too  long", "code": %d}}' % status
    refusing = once(answering(status, body, (b"retry-after", b"17"), (b"x-engine", b"vllm")))

    async def play() -> None:
        async with scene(prefill=[NumberedPrefill()], decode=[refusing]) as s:
            answer = await s.complete(stream=stream)
            assert (answer.status, answer.body) == (status, body)
            assert answer.values(b"retry-after") == [b"17"]
            assert answer.values(b"x-engine") == [b"vllm"]
            assert answer.values(b"content-type") == [JSON[1]]
            await until(lambda: len(s.releases()) == 1, "the release leg has come")
            # The one that it refused, which it has therefore not used.
            assert s.releases() == s.kv_caches_read()
            await s.assert_at_rest()
            assert s.router.plane.stranded_leases == 0
            assert (s.records[0].outcome, s.records[0].status) == ("rejected", status)

    run(play())


def test_a_kv_cache_that_cannot_be_released_is_counted() -> None:
    async def play() -> None:
        async with scene(prefill=[NumberedPrefill()], decode=[answering(429)]) as s:
            assert (await s.complete()).status == 429
            await until(lambda: s.router.plane.stranded_leases == 1, "the stranded lease is counted")
            assert len(s.releases()) == 1
            await s.assert_at_rest()

    run(play())


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_an_error_of_the_decode_worker_arrives_unchanged_and_its_kv_cache_is_not_touched_again(status: int) -> None:
    async def play() -> None:
        script = answering(status, b"broken", (b"retry-after", b"3"))
        async with scene(prefill=[NumberedPrefill()], decode=[script, decode_normally]) as s:
            answer = await s.complete(stream=True)
            assert (answer.status, answer.body, answer.values(b"retry-after")) == (status, b"broken", [b"3"])
            await s.assert_at_rest()
            assert s.releases() == []
            assert s.records[0].stranded_leases == s.router.plane.stranded_leases == 1
            assert len(s.prefills[0].requests) == 1
            assert not s.decodes[1].requests

    run(play())


def test_a_stream_that_stalls_is_ended() -> None:
    async def play() -> None:
        timeouts = {"stream_idle_s": 0.3}
        async with scene(prefill=[NumberedPrefill()], decode=[stream_then(hang)], timeouts=timeouts) as s:
            answer = await s.complete(stream=True)
            assert len(events(answer.body)) == 3
            assert json.loads(events(answer.body)[-1])["error"]["code"] == 504
            assert b"[DONE]" not in answer.body
            await s.assert_at_rest()
            await until(lambda: all(peer_is_probe(s, peer) for peer in s.decodes[0].peers), "the leg is closed")
            assert s.records[0].outcome == "failed"

    def peer_is_probe(s: Scene, peer: Peer) -> bool:
        return all(leg.connection != peer.number for leg in s.decodes[0].requests)

    run(play())


def test_a_whole_answer_that_stalls_is_a_504() -> None:
    async def script(request: WorkerRequest, peer: Peer) -> None:
        await peer.send(UNFINISHED)
        await peer.until_closed()

    async def play() -> None:
        async with scene(prefill=[NumberedPrefill()], decode=[script], timeouts={"stream_idle_s": 0.3}) as s:
            answer = await s.complete()
            assert answer.status == 504
            await s.assert_at_rest()

    run(play())


@pytest.mark.parametrize("stream", [False, True])
def test_a_decode_worker_that_hangs_is_given_up(stream: bool) -> None:
    async def play() -> None:
        workers = [hang, decode_normally]
        async with scene(prefill=[NumberedPrefill()], decode=workers, timeouts={"first_byte_s": 0.3}) as s:
            answer = await s.complete(stream=stream)
            assert answer.status == 504
            assert answer.json()["error"]["type"] == "upstream_timeout_error"
            assert not s.decodes[1].requests
            await s.assert_at_rest()

    run(play())


def test_a_stream_without_a_single_event_is_passed_on_as_it_is() -> None:
    async def script(request: WorkerRequest, peer: Peer) -> None:
        await peer.start_stream()
        await peer.send(LAST_CHUNK)

    async def play() -> None:
        async with scene(decode=[script]) as s:
            answer = await s.complete(stream=True)
            assert (answer.status, answer.body, answer.is_chunked) == (200, b"", True)
            await s.assert_at_rest()

    run(play())


def test_under_failures_of_all_kinds_no_kv_cache_is_used_twice() -> None:
    """A hundred requests over workers that fail in turn, on connections old and new."""
    scripts = [die, decode_normally, answering(500), stream_then(die), dying_within(UNFINISHED), decode_normally]

    def moody(start: int) -> Script:
        count = [start]

        async def script(request: WorkerRequest, peer: Peer) -> None:
            if is_release(request):
                await decode_normally(request, peer)
                return
            count[0] += 1
            await scripts[count[0] % len(scripts)](request, peer)

        return script

    async def play() -> None:
        workers = [moody(0), moody(2), moody(3)]
        async with scene(prefill=[NumberedPrefill()] * 2, decode=workers, decode_retries=2) as s:
            statuses = []
            for number in range(100):
                async with connected(s.router) as client:
                    answer = await client.ask(completion(stream=number % 2 == 0, prompt=f"{number} " * 100))
                    statuses.append(answer.status)
            assert set(statuses) <= {200, 500, 502}
            await s.assert_at_rest()
            used = s.kv_caches_read()
            given = {kv_of(leg) for worker in s.decodes for leg in worker.requests}
            assert len(used) == len(set(used)) == len(given) > 100

    run(play())


def test_generated_tokens_are_counted_without_usage() -> None:
    async def chat(request: WorkerRequest, peer: Peer) -> None:
        await peer.start_stream()
        for delta in ({"role": "assistant"}, {"content": "a"}, {"content": "b"}):
            await peer.send(chunk(b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n"))
        await peer.end_stream()

    async def play() -> None:
        async with scene(decode=[chat]) as s:
            await s.complete(stream=True, path=b"/v1/chat/completions")
            await s.complete(stream=True, path=b"/v1/chat/completions", n=2)
            assert [record.generated_tokens for record in s.records] == [2, None]
        async with scene(decode=[decode_normally]) as s:
            await s.complete(stream=True)
            assert s.records[0].generated_tokens == 3

    run(play())


def test_the_last_of_several_usages_counts() -> None:
    def usage(tokens: int) -> dict[str, Any]:
        return {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": tokens}}

    async def script(request: WorkerRequest, peer: Peer) -> None:
        await peer.start_stream()
        pieces = [b"data: " + json.dumps(usage(tokens)).encode() + b"\n\n" for tokens in (1, 2, 3)]
        await peer.send(chunk(b"".join(pieces)))
        await peer.end_stream()

    async def play() -> None:
        async with scene(decode=[script]) as s:
            await s.complete(stream=True)
            assert (s.records[0].usage_prompt_tokens, s.records[0].generated_tokens) == (7, 3)

    run(play())
