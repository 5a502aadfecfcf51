"""What routers recorded is a workload: lengths, shared prefixes and what is known of each request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dolphin_router.output_length import OutputInputs
from dolphin_router.recorder import Recorder
from dolphin_router.request_record import RequestRecord
from dolphin_search.cli import main as search
from dolphin_sim.cli import main as simulate
from dolphin_sim.output_length import output_inputs
from dolphin_sim.workloads import Requests, TraceError, describe, load_trace, workload_by_name

HEADER: dict[str, Any] = {
    "format": "dolphinrouting.dev/recorded/v1",
    "block_bytes": 2048,
    "secret_id": "00112233445566ff",
    "dropped": 0,
}
ROW: dict[str, Any] = {
    "arrived_unix_s": 1_800_000_000.5,
    "model": "m",
    "is_chat": True,
    "prompt_bytes": 8192,
    "prompt_tokens": 2048,
    "prompt_tokens_counted": True,
    "output_tokens": 100,
    "blocks": "".join(f"{block:016x}" for block in (1, 2, 3, 4)),
    "max_tokens": 256,
    "turns": 2,
    "has_tools": True,
    "json_response": False,
    "system_prompt_bucket": 0,
    "prefill_effective_tokens": 2048.0,
    "decode_effective_tokens": 1024.0,
    "expected_output_tokens": 256.0,
    "cluster": 1,
    "decided": "local",
    "taken": "local",
    "reason": "cluster",
    "table": "0123456789ab",
    "streamed": True,
    "ttft_ms": 120.5,
    "tpot_ms": 20.25,
    "duration_ms": 2125.25,
    "status": 200,
    "outcome": "completed",
    "retries": 0,
}
LATER: dict[str, Any] = ROW | {
    "arrived_unix_s": 1_800_000_002.0,
    "output_tokens": 7,
    "blocks": "".join(f"{block:016x}" for block in (1, 2, 9, 10)),
    "max_tokens": None,
    "turns": 1,
    "has_tools": False,
    "json_response": True,
    "system_prompt_bucket": None,
}


def written(folder: Path, *lines: dict[str, Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_rows_become_requests(tmp_path: Path) -> None:
    requests = load_trace(written(tmp_path, HEADER, LATER, ROW)).requests
    assert requests.arrival_s.tolist() == [0.0, 1.5]
    assert requests.prompt_tokens.tolist() == [2048, 2048]
    assert requests.output_tokens.tolist() == [100, 7]
    assert requests.block_tokens == 512
    assert requests.block_ids.tolist() == [0, 1, 2, 3, 0, 1, 4, 5]
    assert requests.component_names == ("m",)


def test_rows_say_of_requests_what_the_router_knew(tmp_path: Path) -> None:
    inputs = output_inputs(load_trace(written(tmp_path, HEADER, ROW, LATER)).requests)
    router = [OutputInputs(2048, 256, 2, True, False, 0), OutputInputs(2048, None, 1, False, True, None)]
    assert inputs == pytest.approx(np.array([row.vector() for row in router]))


def test_requests_without_an_answer_are_left_out(tmp_path: Path) -> None:
    refused = ROW | {"output_tokens": None, "outcome": "rejected", "status": 400}
    empty = ROW | {"output_tokens": 0}
    assert len(load_trace(written(tmp_path, HEADER, ROW, refused, empty, LATER)).requests) == 2


def test_blocks_have_as_many_tokens_as_their_bytes_had(tmp_path: Path) -> None:
    rows = [ROW | {"prompt_tokens": 1024}, LATER | {"prompt_tokens": 1300}]
    requests = load_trace(written(tmp_path, HEADER, *rows)).requests
    assert requests.block_tokens == round(2048 * (1024 + 1300) / (2 * 8192))
    # 290 tokens a block: of the first row three blocks are full, of the second four.
    assert requests.block_ids.tolist() == [0, 1, 2, 0, 1, 3, 4]


def test_what_is_not_known_of_a_prompt_is_new(tmp_path: Path) -> None:
    rows = [ROW | {"blocks": ROW["blocks"][:32]}, LATER | {"blocks": ""}, LATER | {"blocks": ROW["blocks"][:32]}]
    requests = load_trace(written(tmp_path, HEADER, *rows)).requests
    assert requests.block_ids.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 8, 9]


def test_files_of_several_routers_can_be_put_together(tmp_path: Path) -> None:
    both = load_trace(written(tmp_path, HEADER, LATER, HEADER | {"dropped": 5}, ROW)).requests
    assert both.digest() == load_trace(written(tmp_path, HEADER, ROW, LATER)).requests.digest()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"secret_id": "f" * 16}, "secret_id differs .* give files of one policy's routers"),
        ({"block_bytes": 4096}, "block_bytes is 4096, but 2048"),
        ({"block_bytes": 0}, "block_bytes .*greater than or equal to 64"),
        ({"format": "dolphinrouting.dev/recorded/v9"}, "format is .*v9', but this release reads"),
    ],
)
def test_files_that_do_not_go_together_are_refused(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    with pytest.raises(TraceError, match=f":3: {reason}"):
        load_trace(written(tmp_path, HEADER, ROW, HEADER | change, LATER))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"arrived_unix_s": -1.0}, "arrived_unix_s .*greater than or equal to 0"),
        ({"arrived_unix_s": "now"}, "arrived_unix_s .*valid number"),
        ({"prompt_tokens": 2**40}, "prompt_tokens 1099511627776 is more than any prompt has"),
        ({"prompt_tokens": 1.5}, "prompt_tokens .*integer"),
        ({"blocks": "0123"}, "blocks .*pattern"),
        ({"blocks": LATER["blocks"][16:]}, "blocks: 0000000000000002 follows another prefix"),
        ({"system_prompt_bucket": 8}, "system_prompt_bucket .*less than 8"),
        ({"outcome": "lost"}, "outcome is 'lost', but this release reads"),
        ({"surprise": 1}, "surprise is not a field of this format"),
    ],
)
def test_a_malformed_row_is_named(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    path = written(tmp_path, HEADER, ROW, LATER | change)
    with pytest.raises(TraceError, match=reason) as caught:
        load_trace(path, truncated_ok=True)
    assert (caught.value.path, caught.value.line) == (path, 3)


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    row = {name: value for name, value in ROW.items() if name != "turns"}
    with pytest.raises(TraceError, match=":2: turns is missing"):
        load_trace(written(tmp_path, HEADER, row))


def test_a_truncated_export_needs_consent(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER, ROW, LATER)
    path.write_text(path.read_text()[:-40])
    with pytest.raises(TraceError, match=":3: the last line is truncated"):
        load_trace(path)
    assert len(load_trace(path, truncated_ok=True).requests) == 1


def test_an_export_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="holds no requests"):
        load_trace(written(tmp_path, HEADER))


def recorded(prompts: list[bytes], *, gap_s: float = 1.0) -> bytes:
    recorder = Recorder(secret=b"of the policy")
    for number, prompt in enumerate(prompts):
        record = RequestRecord(
            arrived_s=gap_s * number,
            arrived_unix_s=1e9 + gap_s * number,
            path="/v1/chat/completions",
            model="m",
            output_inputs=OutputInputs(len(prompt) // 4, None, 1, False, False, number % 8),
            finished_s=gap_s * number + 1.0,
            status=200,
            outcome="completed",
            generated_tokens=10 + number % 50,
        )
        recorder.finished(record, prompt)
    return b"".join(recorder.lines())


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=8),
)
def test_prefixes_are_shared_as_in_the_recorded_prompts(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[tuple[int, int, int]]
) -> None:
    """Each prompt is some blocks of one of three documents, then some of its own."""
    prompts = [
        b"".join(b"%d-%02d" % (document, block) * 512 for block in range(common))
        + b"".join(b"own%d%02d%02d" % (document, number, block) * 256 for block in range(own))
        for number, (document, common, own) in enumerate(shapes)
    ]
    prompts = [prompt[: len(prompt) // 2048 * 2048] for prompt in prompts if len(prompt) >= 2048]
    assume(prompts)
    path = tmp_path_factory.mktemp("recorded") / "rows.jsonl"
    path.write_bytes(recorded(prompts))
    requests: Requests = load_trace(path).requests
    assert requests.block_tokens == 512
    ids = [
        requests.block_ids[start:stop].tolist()
        for start, stop in zip(requests.block_offsets[:-1], requests.block_offsets[1:], strict=True)
    ]
    for one, one_ids in zip(prompts, ids, strict=True):
        for other, other_ids in zip(prompts, ids, strict=True):
            for block in range(min(len(one_ids), len(other_ids))):
                same = one[: 2048 * (block + 1)] == other[: 2048 * (block + 1)]
                assert (one_ids[block] == other_ids[block]) == same


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traffic") / "rows.jsonl"
    documents = [b"%04d" % number * 2048 for number in range(20)]
    path.write_bytes(recorded([documents[n % 20] + b"%06d" % n * 100 for n in range(1200)]))
    return path


def test_recorded_requests_can_be_named_wherever_a_workload_is(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload = workload_by_name(rows)
    assert workload.name == "rows"
    assert describe(load_trace(rows).requests).reuse > 0.8
    assert simulate(["workloads", "--describe", str(rows)]) == 0
    assert (
        simulate(["run", "--workload", str(rows), "--rate", "2", "--period-s", "60", "--policy", "always-local"]) == 0
    )
    assert "rows" in capsys.readouterr().out


def test_a_table_is_learned_from_recorded_requests(rows: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    words = ["learn", "--workload", str(rows), "--rate", "2", "--period-s", "30", "--settle-s", "10", "--rounds", "4"]
    words += ["--clusters", "2", "--periods-per-round", "1", "--no-compare", "--out", str(table)]
    assert search(words) == 0
    provenance = json.loads(table.read_text())["provenance"]
    assert (provenance["workload"], provenance["expected_lengths"]) == ("rows", "trained")


def test_a_fault_in_a_recorded_file_is_one_line_for_the_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, HEADER, ROW, LATER | {"turns": -1})
    assert simulate(["run", "--workload", str(path), "--rate", "1"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"dolphin-sim: argument --workload: {path}:3: turns ")
    assert error.count("\n") == 1
