"""The recorder keeps what a search needs of each request, nothing of its text, and never more than it may."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolphin_router.completion_request import CompletionRequest
from dolphin_router.contract.recorded_request import RecordedHeader, RecordedRequest
from dolphin_router.decision import Action, Decision
from dolphin_router.features import Features
from dolphin_router.output_length import OutputInputs
from dolphin_router.prefix_index.block_keys import block_keys
from dolphin_router.recorder import HASHED_BYTES_PER_S, MOST_BLOCKS, RECORDED_BLOCK_BYTES, BlockDigests, Recorder
from dolphin_router.request_record import RequestRecord

SECRET = b"of the policy"
SEED = b"chat m"
INPUTS = OutputInputs(700, 256, 2, True, False, 5)
COUNTS = st.integers(0, 2**40)
SECONDS = st.floats(0, 1e6)


def ended(**changes: Any) -> RequestRecord:
    record = RequestRecord(
        arrived_s=10.0,
        arrived_unix_s=1_800_000_000.25,
        path="/v1/chat/completions",
        model="m",
        prompt_seed=SEED,
        features=Features(700.0, 188.0, 700.0, 200.0),
        output_inputs=INPUTS,
        decision=Decision(Action.REMOTE, 3, "cluster", 0.5),
        action_taken="local",
        reason="no_prefill_worker",
        table_digest="sha256:0123456789abcdef",
        first_byte_s=10.5,
        finished_s=12.5,
        status=200,
        outcome="completed",
        streamed=True,
        usage_prompt_tokens=702,
        generated_tokens=101,
        retries=1,
    )
    return dataclasses.replace(record, **changes)


def prompt_of(size: int, *, first: bytes = b"a") -> bytes:
    return first + b"".join(b"%09d " % number for number in range(size // 10 + 1))[: size - 1]


def lines_of(recorder: Recorder) -> list[bytes]:
    return b"".join(recorder.lines()).splitlines()


def rows_of(recorder: Recorder) -> list[RecordedRequest]:
    return [RecordedRequest.model_validate_json(line) for line in lines_of(recorder)[1:]]


def blocks_of(row: RecordedRequest) -> list[str]:
    return [row.blocks[place : place + 16] for place in range(0, len(row.blocks), 16)]


def test_a_request_becomes_a_row() -> None:
    recorder = Recorder(secret=SECRET)
    recorder.finished(ended(), prompt_of(2500))
    (row,) = rows_of(recorder)
    assert row.model_dump(exclude={"blocks"}) == {
        "arrived_unix_s": 1_800_000_000.25,
        "model": "m",
        "is_chat": True,
        "prompt_bytes": 2500,
        "prompt_tokens": 702,
        "prompt_tokens_counted": True,
        "output_tokens": 101,
        "max_tokens": 256,
        "turns": 2,
        "has_tools": True,
        "json_response": False,
        "system_prompt_bucket": 5,
        "prefill_effective_tokens": 188.0,
        "decode_effective_tokens": 700.0,
        "expected_output_tokens": 200.0,
        "cluster": 3,
        "decided": "remote",
        "taken": "local",
        "reason": "no_prefill_worker",
        "table": "0123456789ab",
        "streamed": True,
        "ttft_ms": 500.0,
        "tpot_ms": 20.0,
        "duration_ms": 2500.0,
        "status": 200,
        "outcome": "completed",
        "retries": 1,
    }
    assert len(blocks_of(row)) == 1


def test_without_usage_the_estimate_is_written() -> None:
    recorder = Recorder(secret=SECRET)
    recorder.finished(ended(usage_prompt_tokens=None), b"[]")
    (row,) = rows_of(recorder)
    assert (row.prompt_tokens, row.prompt_tokens_counted) == (700, False)


def test_the_first_token_of_an_answer_in_one_piece_is_not_known() -> None:
    recorder = Recorder(secret=SECRET)
    recorder.finished(ended(streamed=False), b"[]")
    (row,) = rows_of(recorder)
    assert (row.ttft_ms, row.tpot_ms, row.duration_ms) == (None, None, 2500.0)


def test_a_request_that_was_never_read_leaves_no_row() -> None:
    recorder = Recorder(secret=SECRET)
    recorder.finished(ended(output_inputs=None), b"")
    assert len(recorder) == 0


@settings(deadline=None)
@given(data=st.data())
def test_every_row_can_be_read(data: st.DataObject) -> None:
    draw = data.draw
    record = RequestRecord(
        arrived_s=0.0,
        arrived_unix_s=draw(st.floats(0, 4e9)),
        path=draw(st.sampled_from(["/v1/completions", "/v1/chat/completions"])),
        model=draw(st.text()),
        prompt_seed=draw(st.binary(max_size=40)),
        output_inputs=OutputInputs(
            draw(COUNTS), draw(st.none() | COUNTS), draw(COUNTS), draw(st.booleans()), draw(st.booleans()), None
        ),
        features=draw(st.none() | st.tuples(SECONDS, SECONDS, SECONDS, SECONDS).map(lambda four: Features(*four))),
        decision=draw(st.none() | st.just(Decision(Action.LOCAL, 63, "cluster", 1.0))),
        first_byte_s=draw(st.none() | st.floats(0, 1)),
        finished_s=draw(st.floats(1, 1e6)),
        status=draw(st.none() | st.integers(200, 599)),
        outcome=draw(st.sampled_from(["completed", "rejected", "failed", "client-closed"])),
        streamed=draw(st.booleans()),
        usage_prompt_tokens=draw(st.none() | COUNTS),
        generated_tokens=draw(st.none() | COUNTS),
        retries=draw(st.integers(0, 9)),
    )
    recorder = Recorder(secret=SECRET)
    recorder.finished(record, draw(st.binary(max_size=5000)))
    (row,) = rows_of(recorder)
    assert row.outcome == record.outcome
    assert row.output_tokens == record.generated_tokens
    assert row.model == record.model or not record.model.isprintable() or len(record.model) > 253
    assert (row.ttft_ms is not None) == (record.streamed and record.first_byte_s is not None)


def test_names_that_no_text_can_hold_are_written_all_the_same() -> None:
    recorder = Recorder(secret=SECRET)
    recorder.finished(ended(model="a\ud800b\nc" + "x" * 999), b"[]")
    (row,) = rows_of(recorder)
    assert row.model == "a?b?c" + "x" * 248


def test_a_header_says_what_the_rows_are() -> None:
    recorder = Recorder(secret=SECRET)
    header = RecordedHeader.model_validate_json(lines_of(recorder)[0])
    assert (header.block_bytes, header.dropped) == (RECORDED_BLOCK_BYTES, 0)
    other = RecordedHeader.model_validate_json(lines_of(Recorder(secret=b"another"))[0])
    assert other.secret_id != header.secret_id == RecordedHeader.model_validate_json(lines_of(recorder)[0]).secret_id


def test_nothing_of_the_text_is_kept() -> None:
    recorder = Recorder(secret=SECRET)
    word = b"confidential"
    recorder.finished(ended(prompt_seed=word * 5), word * 2000)
    assert word not in b"".join(recorder.lines())


# Blocks


def test_equal_prefixes_have_equal_blocks_on_every_router() -> None:
    one, other = Recorder(secret=SECRET), Recorder(secret=SECRET)
    first = prompt_of(30_000)
    second = first[:20_000] + b"!" + first[20_001:]
    one.finished(ended(prompt_keys=block_keys(SEED, first)), first)
    other.finished(ended(), second)
    (row,), (other_row,) = rows_of(one), rows_of(other)
    same = [a == b for a, b in zip(blocks_of(row), blocks_of(other_row), strict=True)]
    assert same == [True] * 9 + [False] * 5


@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(0, 70_000), min_size=1, max_size=6), with_index=st.lists(st.booleans(), min_size=6))
def test_blocks_do_not_depend_on_what_came_before(sizes: list[int], with_index: list[bool]) -> None:
    digests = BlockDigests(SECRET)
    for size, indexed in zip(sizes, with_index, strict=False):
        prompt = prompt_of(size) if size else b""
        keys = block_keys(SEED, prompt) if indexed else ()
        fresh = BlockDigests(SECRET).of(SEED, prompt, (), now_s=0.0)
        assert digests.of(SEED, prompt, keys, now_s=0.0) == fresh
        assert len(fresh) == 16 * (size // RECORDED_BLOCK_BYTES)


def test_blocks_depend_on_secret_and_seed() -> None:
    prompt = prompt_of(5000)
    plain = BlockDigests(SECRET).of(SEED, prompt, (), now_s=0.0)
    assert plain[:16] != BlockDigests(b"another").of(SEED, prompt, (), now_s=0.0)[:16]
    assert plain[:16] != BlockDigests(SECRET).of(b"with tools", prompt, (), now_s=0.0)[:16]


def test_no_more_is_hashed_than_a_second_allows() -> None:
    digests = BlockDigests(SECRET)
    allowed = HASHED_BYTES_PER_S // RECORDED_BLOCK_BYTES
    prompts = [prompt_of(220_000, first=b"%d" % number) for number in range(60)]
    hashed = [len(digests.of(SEED, prompt, block_keys(SEED, prompt), now_s=5.0)) // 16 for prompt in prompts]
    assert sum(hashed) == allowed
    # What was hashed is known for nothing, and a second later there is room again.
    assert len(digests.of(SEED, prompts[0], block_keys(SEED, prompts[0]), now_s=5.0)) == 16 * hashed[0]
    later = [len(digests.of(SEED, prompt, (), now_s=6.0)) // 16 for prompt in prompts]
    assert sum(later) == pytest.approx(allowed, abs=1)


def test_an_endless_prompt_has_a_bounded_row() -> None:
    recorder = Recorder(secret=SECRET)
    recorder.finished(ended(), b"a" * (RECORDED_BLOCK_BYTES * (MOST_BLOCKS + 50)))
    assert len(blocks_of(rows_of(recorder)[0])) == MOST_BLOCKS


# Memory


def test_the_oldest_rows_make_room_and_the_bound_holds_for_long_prompts() -> None:
    most_bytes = 200_000
    recorder = Recorder(secret=SECRET, most_bytes=most_bytes)
    prompt = prompt_of(220_000)
    keys = block_keys(SEED, prompt)
    for number in range(500):
        recorder.finished(ended(arrived_unix_s=float(number), prompt_keys=keys), prompt)
        assert recorder.held_bytes <= most_bytes
    rows = rows_of(recorder)
    assert recorder.held_bytes == sum(map(sys.getsizeof, lines_of(recorder)[1:]))
    assert [row.arrived_unix_s for row in rows] == [float(number) for number in range(500 - len(rows), 500)]
    header = RecordedHeader.model_validate_json(lines_of(recorder)[0])
    assert header.dropped == recorder.dropped == 500 - len(rows)
    assert 50 < len(rows) < 500


def test_an_export_shows_one_moment() -> None:
    recorder = Recorder(secret=SECRET, most_bytes=400_000)
    for number in range(600):
        recorder.finished(ended(arrived_unix_s=float(number)), b"[]")
    export: Iterator[bytes] = recorder.lines()
    pieces = [next(export), next(export)]
    for number in range(600, 2000):
        recorder.finished(ended(arrived_unix_s=float(number)), b"[]")
    pieces.extend(export)
    times = [json.loads(line)["arrived_unix_s"] for line in b"".join(pieces).splitlines()[1:]]
    assert times == [float(number) for number in range(600)]


@pytest.mark.parametrize("secret", [b"", bytes(65)])
def test_a_secret_that_cannot_be_used_is_refused(secret: bytes) -> None:
    with pytest.raises(ValueError, match=f"has {len(secret)} bytes; give one of 1 to 64"):
        Recorder(secret=secret)


def test_a_real_request_can_be_recorded_from_its_raw_prompt() -> None:
    request = CompletionRequest(b'{"messages": [{"role": "user", "content": "%b"}]}' % (b"x" * 5000), is_chat=True)
    assert request.prompt is not None
    recorder = Recorder(secret=SECRET)
    recorder.finished(ended(), memoryview(request.prompt))
    assert len(blocks_of(rows_of(recorder)[0])) == 2
