"""Trace files: every row that parses is used as it is, every other is named with file, line and reason."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolphin_sim.workloads import TraceError, describe, load_trace
from dolphin_sim.workloads.mooncake import MooncakeRow, mooncake_requests, parse_mooncake, spread_over_grid

TRACES = Path(os.environ.get("DOLPHIN_TRACES", Path(__file__).parents[5] / "shared" / "traces"))
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
ROW = {"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]}
LATER = {"timestamp": 4500, "input_length": 1024, "output_length": 6, "hash_ids": [7, 2**63]}


def recorded(name: str) -> Path:
    path = TRACES / name
    if not path.is_file():
        pytest.skip(f"{name} is not here; put it into ../shared/traces or name its folder in DOLPHIN_TRACES")
    return path


def written(folder: Path, text: str, name: str = "some.trace") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def lines_of(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_mooncake_rows_become_requests_of_full_blocks(tmp_path: Path) -> None:
    requests, dropped = load_trace(written(tmp_path, lines_of(ROW, LATER)))
    assert dropped == 0
    assert requests.arrival_s.tolist() == [0.0, 3.5]
    assert requests.prompt_tokens.tolist() == [1100, 1024]
    assert requests.output_tokens.tolist() == [5, 6]
    assert requests.block_tokens == 512
    assert requests.block_offsets.tolist() == [0, 2, 4]
    assert requests.block_ids.tolist() == [0, 1, 0, 2]
    assert requests.component_names == ("some",)


def test_azure_rows_become_requests_without_shared_blocks(tmp_path: Path) -> None:
    text = f"\ufeff{HEADER}\r\n2023-11-16 18:17:04.5000000,130,9\r\n\r\n2023-11-16 18:17:03.2500000+00:00,200,10"
    requests, dropped = load_trace(written(tmp_path, text, "azure.csv"))
    assert dropped == 0
    assert requests.arrival_s.tolist() == [0.0, 1.25]
    assert requests.prompt_tokens.tolist() == [200, 130]
    assert requests.output_tokens.tolist() == [10, 9]
    assert requests.block_tokens == 64
    assert requests.block_ids.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"timestamp": -1}, "timestamp: -1 is not a time"),
        ({"timestamp": "0"}, "timestamp: '0'"),
        ({"timestamp": True}, "timestamp: True"),
        ({"timestamp": float("nan")}, "timestamp: nan"),
        ({"timestamp": None}, "timestamp: None"),
        ({"input_length": 0}, "input_length: 0 is not a positive whole number"),
        ({"input_length": 10.5}, "input_length: 10.5"),
        ({"output_length": 0}, "output_length: 0"),
        ({"output_length": 2**70}, "output_length: 118059"),
        ({"hash_ids": [7, 8]}, "hash_ids: 2 ids, but 1100 tokens make 3 blocks of 512"),
        ({"hash_ids": [7, "8", 9]}, "hash_ids: .* is not a list of whole numbers"),
        ({"hash_ids": 7}, "hash_ids: 7 is not a list"),
        ({"hash_ids": [8, 7, 9]}, "hash_ids: 8 follows another prefix"),
        ({"hash_ids": [7, 7, 9]}, "hash_ids: 7 follows another prefix"),
    ],
)
def test_a_malformed_mooncake_row_is_named(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    path = written(tmp_path, lines_of(ROW, ROW | {"timestamp": 2000} | change, LATER))
    with pytest.raises(TraceError, match=reason) as caught:
        load_trace(path, truncated_ok=True)
    assert (caught.value.path, caught.value.line) == (path, 2)
    assert str(caught.value).startswith(f"{path}:2: ")


@pytest.mark.parametrize("name", ["timestamp", "input_length", "output_length", "hash_ids"])
def test_a_missing_mooncake_field_is_named(tmp_path: Path, name: str) -> None:
    row = {field: value for field, value in ROW.items() if field != name}
    with pytest.raises(TraceError, match=f":2: {name}: missing"):
        load_trace(written(tmp_path, lines_of(ROW, row)))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[1, 2]", "a JSON object is expected"),
        ("nonsense", "not JSON"),
        ('{"timestamp": 1,', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"timestamp": ' + "9" * 5000 + "}", "digits"),
    ],
)
def test_a_line_that_is_no_object_is_named(tmp_path: Path, line: str, reason: str) -> None:
    with pytest.raises(TraceError, match=f":2: .*{reason}"):
        load_trace(written(tmp_path, lines_of(ROW) + line + "\n" + lines_of(LATER)))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("2023-11-16 18:17:03,5", "3 values are expected"),
        ("2023-11-16 18:17:03,5,6,7", "3 values are expected .* got 4"),
        ("yesterday,5,6", "TIMESTAMP: 'yesterday' is not a date and time"),
        ("2023-11-16 18:17:03,0,6", "ContextTokens: '0' is not a positive whole number"),
        ("2023-11-16 18:17:03,5,-6", "GeneratedTokens: '-6'"),
        ("2023-11-16 18:17:03,5,6.0", "GeneratedTokens: '6.0'"),
        ("2023-11-16 18:17:03,1_0,6", "ContextTokens: '1_0'"),
        ("2023-11-16 18:17:03,5,", "GeneratedTokens: ''"),
    ],
)
def test_a_malformed_azure_row_is_named(tmp_path: Path, line: str, reason: str) -> None:
    text = f"{HEADER}\n2023-11-16 18:17:03,5,6\n{line}\n2023-11-16 18:17:09,5,6\n"
    with pytest.raises(TraceError, match=f":3: {reason}"):
        load_trace(written(tmp_path, text))


@pytest.mark.parametrize(
    ("whole", "rows_left"), [(lines_of(ROW, LATER), 1), (f"{HEADER}\n2023-11-16 18:17:03,5,6\n2023-11-16 18:1", 1)]
)
def test_a_truncated_last_line_needs_consent(tmp_path: Path, whole: str, rows_left: int) -> None:
    path = written(tmp_path, whole[:-5])
    with pytest.raises(TraceError, match=r"the last line is truncated .*truncated_ok to use the 1 rows"):
        load_trace(path)
    requests, dropped = load_trace(path, truncated_ok=True)
    assert (len(requests), dropped) == (rows_left, 1)


def test_a_file_cut_in_the_middle_of_a_character_is_truncated(tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl"
    path.write_bytes(lines_of(ROW).encode() + '{"é'.encode()[:-1])
    with pytest.raises(TraceError, match=":2: the last line is truncated"):
        load_trace(path)
    assert load_trace(path, truncated_ok=True).dropped_lines == 1


def test_a_whole_last_line_needs_no_line_break(tmp_path: Path) -> None:
    requests, dropped = load_trace(written(tmp_path, lines_of(ROW, LATER).rstrip("\n")))
    assert (len(requests), dropped) == (2, 0)


def test_a_broken_last_line_with_a_line_break_is_not_truncated(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=":2: not JSON"):
        load_trace(written(tmp_path, lines_of(ROW) + '{"timestamp": 1\n'), truncated_ok=True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file is empty"),
        ("\n \n", "the file is empty"),
        (f"{HEADER}\n", "the file holds no requests"),
        ("a,b,c\n1,2,3\n", ":1: unknown format: .*Mooncake.*Azure.* got 'a,b,c'"),
    ],
)
def test_a_file_without_a_trace_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        load_trace(written(tmp_path, text))


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(b"\xff\xfe\x00\n\x01")
    with pytest.raises(TraceError, match=":1: not UTF-8"):
        load_trace(path)


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=60) | st.dictionaries(st.sampled_from([*ROW, "x"]), st.integers() | st.text()).map(json.dumps))
def test_any_line_parses_or_is_refused(text: str) -> None:
    try:
        row = parse_mooncake(text)
    except ValueError:
        return
    assert len(row.hash_ids) == -(-row.input_length // 512)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=10))
def test_block_ids_are_equal_just_where_prefixes_are(prompts: list[list[int]]) -> None:
    # Hashes as the trace has them: any number that stands for the whole prefix.
    hashes = [[hash(tuple(prompt[: stop + 1])) for stop in range(len(prompt))] for prompt in prompts]
    rows = [
        (number + 1, MooncakeRow(float(number), 512 * len(prompt), 1, ids))
        for number, (prompt, ids) in enumerate(zip(prompts, hashes, strict=True))
    ]
    requests = mooncake_requests(Path("made.jsonl"), rows).check()
    content: dict[int, tuple[int, ...]] = {}
    ids_of: dict[tuple[int, ...], int] = {}
    for row, prompt in enumerate(prompts):
        ids = requests.block_ids[requests.block_offsets[row] : requests.block_offsets[row + 1]].tolist()
        assert len(ids) == len(prompt)
        for stop, block in enumerate(ids):
            prefix = tuple(prompt[: stop + 1])
            assert content.setdefault(block, prefix) == prefix
            assert ids_of.setdefault(prefix, block) == block


def test_times_on_a_grid_are_spread_evenly_over_its_steps() -> None:
    times_s = np.array([0.0, 0, 0, 3, 3, 3, 3, 30, 30, 30, 33, 33, 33])
    spread_s = spread_over_grid(times_s)
    assert spread_s.tolist() == pytest.approx([0, 1, 2, 3, 3.75, 4.5, 5.25, 30, 31, 32, 33, 34, 35])


def test_times_that_are_rarely_equal_are_left_alone() -> None:
    times_s = np.array([0.0, 1, 1, 2, 5, 9])
    assert spread_over_grid(times_s).tolist() == times_s.tolist()
    assert spread_over_grid(np.zeros(5)).tolist() == [0.0] * 5


@pytest.mark.parametrize(
    ("name", "rows", "prompt_mean", "output_mean", "rate_per_s", "reuse"),
    [
        ("mooncake_conversation.jsonl", 12_031, 12_035, 342.6, 3.40, 0.374),
        ("mooncake_synthetic.jsonl", 3_993, 15_325, 149.1, 3.91, 0.651),
        ("AzureLLMInferenceTrace_code_2023.csv", 8_819, 2_048, 27.9, 2.57, 0.0),
        ("AzureLLMInferenceTrace_conv_2023.csv", 19_366, 1_155, 211.1, 5.53, 0.0),
    ],
)
def test_recorded_traces_have_their_known_figures(
    name: str, rows: int, prompt_mean: float, output_mean: float, rate_per_s: float, reuse: float
) -> None:
    description = describe(load_trace(recorded(name)).requests)
    assert description.requests == rows
    assert description.prompt_tokens.mean == pytest.approx(prompt_mean, abs=1)
    assert description.output_tokens.mean == pytest.approx(output_mean, abs=0.1)
    assert description.rate_per_s == pytest.approx(rate_per_s, abs=0.01)
    # The known figures count blocks that are not full, too; full blocks alone come within a tenth of a point.
    assert description.reuse == pytest.approx(reuse, abs=0.0015)
    assert list(description.component_shares) == [Path(name).stem]


def test_the_recorded_conversations_do_not_arrive_in_bursts() -> None:
    gaps_s = np.diff(load_trace(recorded("mooncake_conversation.jsonl")).requests.arrival_s)
    assert gaps_s.std() / gaps_s.mean() < 1
    assert gaps_s.max() < 3.1
