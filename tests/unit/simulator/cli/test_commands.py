"""``dolphin-sim`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dolphin_sim.cli import main

QUICK = ["--period-s", "60", "--settle-s", "10"]


def test_run_is_useful_without_flags_that_name_the_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *QUICK]) == 0
    assert "attainment" in capsys.readouterr().out


def test_run_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *QUICK, "--policy", "tuned-cost", "--parameter", "0.3", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["ttft_ms"]) == set(document["tpot_ms"]) == {"p50", "p90", "p99"}
    assert 0 <= document["attainment"] <= 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["run", "--policy", "nope"], "nope"),
        (["run", "--workload", "nope"], "nope"),
        (["run", "--profile", "nope"], "nope"),
        (["run", "--split", "2P"], "2P"),
        (["run", "--split", "4P4D"], "--rate"),
        (["run", "--set", "link_gb_per_s=-1"], "link_gb_per_s"),
        (["run", "--rate", "-1"], "-1"),
        (["run", "--rate", "1e9"], "--rate"),
        (["run", "--rate", "1e300", "--workload", "humaneval"], "--rate"),
        (["run", "--rate", "1", "--period-s", "1e12"], "--period-s"),
        (["run", "--rate", "1000", "--workload", "chat"], "lower rate"),
        (["run", "--rate", "0.0000001"], "--rate"),
        (["run", "--json", "/nowhere/run.json"], "--json"),
        (["run", "--slo-kind", "none"], "none"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    message = capsys.readouterr().err.strip()
    assert named in message
    assert "\n" not in message


def test_profiles_and_workloads_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles"]) == 0
    assert main(["workloads"]) == 0
    listed = capsys.readouterr().out
    assert "h20x4-72b" in listed
    assert "hybrid" in listed


def test_a_file_for_the_result_is_tried_before_the_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = tmp_path / "run.json"
    result.write_text("old", "utf-8")
    # The second argument is wrong too: the file was tried and left as it was.
    assert main(["run", "--json", str(result), "--workload", "nope"]) == 2
    assert result.read_text("utf-8") == "old"
    assert list(tmp_path.iterdir()) == [result]
    assert main(["run", "--json", str(tmp_path), "--workload", "nope"]) == 2
    assert "--json" in capsys.readouterr().err
    assert main(["run", *QUICK, "--json", str(result)]) == 0
    assert json.loads(result.read_text("utf-8"))["requests"] > 0
    assert main(["run", *QUICK, "--json", "/dev/null"]) == 0
    assert Path("/dev/null").is_char_device()
