"""The load generator against a server that does as it is told."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from dolphin_router.contract import Slo
from dolphin_search.replay.answer import Answer
from dolphin_search.replay.generator import Replay, run_replays
from dolphin_search.replay.result import Attained, ReplayResult, result_document
from dolphin_search.replay.schedule import Address, Schedule
from dolphin_sim.workloads.requests import Requests, offsets_of

SLO = Slo(kind="both", ttft_ms=1000.0, ttft_us_per_prompt_token=0.0, tpot_ms=500.0)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"

Script = Callable[[int, asyncio.StreamWriter], object]


def _event(content: bytes) -> bytes:
    data = b"data: %b\n\n" % content
    return b"%x\r\n%b\r\n" % (len(data), data)


def _token() -> bytes:
    return _event(b'{"choices":[{"index":0,"text":" t"}]}')


def _end(tokens: int) -> bytes:
    usage = json.dumps({"choices": [], "usage": {"completion_tokens": tokens}}).encode()
    return _event(usage) + _event(b"[DONE]") + b"0\r\n\r\n"


def whole(tokens: int, *, headers: bytes = b"") -> bytes:
    return HEAD + headers + b"\r\n" + _token() * tokens + _end(tokens)


class Server:
    """Reads whole requests and answers each as a function of its number says."""

    def __init__(self, answer: Callable[[int], bytes | None]) -> None:
        self._answer = answer
        self.prompts: list[int] = []
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))[15:])
            body = json.loads(await reader.readexactly(length))
            number = body["max_tokens"] - 1
            self.prompts.append(len(body["prompt"]))
            answer = self._answer(number)
            if answer is None:
                await reader.read()  # Until the client leaves.
            else:
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@contextmanager
def serving(answer: Callable[[int], bytes | None]) -> Iterator[Server]:
    """Run the server in a thread of its own."""
    server = Server(answer)
    loop = asyncio.new_event_loop()
    listener = loop.run_until_complete(asyncio.start_server(server.handle, "127.0.0.1", 0))
    server.port = listener.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server
    finally:

        async def stop() -> None:
            listener.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def requests(count: int, *, every_s: float = 0.02) -> Requests:
    """Request number n asks for n + 1 tokens."""
    prompts = np.full(count, 40, dtype=np.int64)
    return Requests.without_inputs(
        arrival_s=np.arange(count) * every_s,
        prompt_tokens=prompts,
        output_tokens=np.arange(1, count + 1, dtype=np.int64),
        block_offsets=offsets_of(prompts // 16),
        block_ids=np.arange(2 * count, dtype=np.int64),
        block_tokens=16,
        component_name="test",
    ).check()


def replayed(server: Server, sent: Requests, *, grace_s: float = 5.0, **settings: object) -> ReplayResult:
    everything = np.ones(len(sent), dtype=np.bool_)
    schedule = Schedule(sent, time_scale=1.0)
    [answers] = run_replays([Replay(schedule, Address("127.0.0.1", server.port), everything)], grace_s=grace_s)
    return ReplayResult(sent, everything, answers, 1.0, SLO)


def test_every_request_is_sent_with_its_prompt_and_measured() -> None:
    with serving(lambda number: whole(number + 1)) as server:
        result = replayed(server, requests(10))
    assert server.prompts == [40] * 10
    assert [answer.end for answer in result.answers] == ["whole"] * 10
    assert [answer.tokens for answer in result.answers] == list(range(1, 11))
    assert result.other_lengths == 0
    assert Attained.of(result.outcomes(), SLO).attainment == 1.0


def test_requests_are_sent_when_due_though_no_answer_comes() -> None:
    with serving(lambda number: None) as server:
        begun_s = time.monotonic()
        result = replayed(server, requests(12), grace_s=0.1)
        elapsed_s = time.monotonic() - begun_s
    assert len(server.prompts) == 12
    assert all(answer.sent_s >= answer.due_s - 0.002 for answer in result.answers)
    assert [answer.end for answer in result.answers] == ["unfinished"] * 12
    assert result_document(result)["attainment"] == 0.0
    assert result_document(result)["unfinished"] == 12
    assert elapsed_s < 5.0


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 4\r\n\r\nbusy", "status 429: busy"),
        (b"nonsense\r\n\r\n", "no HTTP"),
        (b"", "connection was lost"),
        (HEAD + b"\r\n" + _token(), "connection was lost"),
        (HEAD + b"\r\n" + _token() + b"0\r\n\r\n", "before the answer did"),
        (HEAD + b"\r\n" + _event(b'{"error":{"message":"KV lost"}}') + _end(0), "KV lost"),
        (HEAD + b"\r\n" + _end(0), "no token"),
    ],
)
def test_each_kind_of_failure_is_told_and_counts_as_missed(content: bytes, reason: str) -> None:
    with serving(lambda number: content if number % 2 else whole(number + 1)) as server:
        result = replayed(server, requests(4))
    assert [answer.end for answer in result.answers] == ["whole", "failed", "whole", "failed"]
    assert result.reasons[0][1] == 2
    assert reason in result.reasons[0][0]
    assert result_document(result)["attainment"] == 0.5
    assert result_document(result)["failed"] == 2


def test_an_address_where_nobody_listens_fails_every_request() -> None:
    with serving(lambda number: None) as server:
        pass
    result = replayed(server, requests(3))
    assert [answer.end for answer in result.answers] == ["failed"] * 3
    assert "no connection" in result.reasons[0][0]


def test_what_the_router_tells_of_its_decision_is_kept() -> None:
    told = b"x-dolphin-action: local\r\nX-Dolphin-Cluster: 3\r\nx-dolphin-features: 40,8,24,16.5\r\n"
    with serving(lambda number: whole(number + 1, headers=told)) as server:
        outcomes = replayed(server, requests(2)).outcomes()
    assert outcomes.path.tolist() == [0, 0]
    assert outcomes.cluster.tolist() == [3, 3]
    assert outcomes.prefill_cached_tokens.tolist() == [32, 32]
    assert outcomes.decode_cached_tokens.tolist() == [16, 16]
    assert outcomes.expected_output_tokens.tolist() == [16.5, 16.5]


def test_answers_of_another_length_are_counted() -> None:
    with serving(lambda number: whole(1)) as server:
        result = replayed(server, requests(3))
    assert result.other_lengths == 2


def test_several_replays_run_side_by_side() -> None:
    sent = requests(5)
    everything = np.ones(5, dtype=np.bool_)
    with serving(lambda number: whole(number + 1)) as one, serving(lambda number: whole(number + 1)) as other:
        replays = [
            Replay(Schedule(sent, time_scale=1.0), Address("127.0.0.1", server.port), everything)
            for server in (one, other)
        ]
        answers = run_replays(replays, grace_s=5.0)
    assert [[answer.end for answer in part] for part in answers] == [["whole"] * 5] * 2


def test_a_replay_ends_with_the_last_request_that_is_needed() -> None:
    sent = requests(3, every_s=30.0)
    with serving(lambda number: whole(number + 1)) as server:
        replay = Replay(
            Schedule(sent, time_scale=1.0), Address("127.0.0.1", server.port), np.array([True, False, False])
        )
        [answers] = run_replays([replay], grace_s=5.0)
    assert [answer.end for answer in answers] == ["whole", "not-sent", "not-sent"]


def _answers(sent: Requests, *, lag_s: float, time_scale: float) -> list[Answer]:
    """Whole answers: the first token after 0.25 s of the clock, each later one after 0.01 s more."""
    answers = []
    for row in range(len(sent)):
        due_s = float(sent.arrival_s[row]) / time_scale
        first_s = due_s + lag_s + 0.25
        tokens = int(sent.output_tokens[row])
        answers.append(
            Answer(due_s, due_s + lag_s, first_s, first_s + 0.01 * (tokens - 1), tokens, tokens, 200, end="whole")
        )
    return answers


def test_latencies_count_from_sending_and_in_the_workloads_time() -> None:
    sent = requests(4)
    everything = np.ones(4, dtype=np.bool_)
    outcomes = ReplayResult(sent, everything, _answers(sent, lag_s=0.002, time_scale=10.0), 10.0, SLO).outcomes()
    assert outcomes.ttft_ms == pytest.approx(np.full(4, 2500.0))
    assert outcomes.tpot_ms[1:] == pytest.approx(np.full(3, 100.0))
    assert outcomes.arrival_s == pytest.approx(sent.arrival_s)
    assert not outcomes.is_met(SLO).any()


def test_a_generator_that_lags_makes_no_judgement() -> None:
    sent = requests(4)
    everything = np.ones(4, dtype=np.bool_)
    for lag_s, is_void in ((0.001, False), (0.5, True)):
        result = ReplayResult(sent, everything, _answers(sent, lag_s=lag_s, time_scale=1.0), 1.0, SLO)
        assert result.is_void is is_void
        assert result_document(result)["is_void"] is is_void
        assert result.lag_ms.p99 == pytest.approx(1e3 * lag_s)


def test_only_scored_requests_count() -> None:
    sent = requests(4)
    answers = _answers(sent, lag_s=0.0, time_scale=1.0)
    answers[0].end = answers[3].end = "failed"
    result = ReplayResult(sent, np.array([False, True, True, False]), answers, 1.0, SLO)
    document = result_document(result)
    assert document["requests"] == 2
    assert document["failed"] == 0
    assert document["attainment"] == 1.0
