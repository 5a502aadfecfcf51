"""The command that replays a workload, against an emulated engine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dolphin_search.cli import main

RUN = "import sys; from dolphin_sim.cli import main; sys.exit(main())"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    words = ["engine", "--port", "0", "--time-scale", "50", "--profile", "h200x4-72b"]
    with subprocess.Popen([sys.executable, "-c", RUN, *words], stdout=subprocess.PIPE) as engine:
        try:
            assert engine.stdout is not None
            found = re.search(rb"http://\S+", engine.stdout.readline())
            assert found is not None
            yield found[0].decode()
        finally:
            engine.terminate()
            engine.wait(10.0)


def _words(url: str, *more: str) -> list[str]:
    return ["replay", "--url", url, "--workload", "humaneval", "--rate", "0.5", "--time-scale", "50", *more]


def test_requests_are_measured_and_the_result_is_written(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    words = _words(url, "--requests", "20", "--settle-s", "4", "--lag-limit-ms", "60000", "--json", str(path))
    assert main(words) == 0
    document = json.loads(path.read_text())
    assert 10 <= document["requests"] <= 20
    assert document["failed"] == document["unfinished"] == document["other_lengths"] == 0
    assert document["time_scale"] == 50.0
    assert 0.0 < document["ttft_ms"]["p50"] < document["ttft_ms"]["p99"]
    # An idle H200 worker's step takes 13 ms; the bounds leave room for a busy machine.
    assert 10.0 < document["tpot_ms"]["p50"] < 60.0
    assert document["decision_not_told"] == document["requests"]
    assert "keep the promise" in capsys.readouterr().out


def test_a_run_that_lags_is_void_and_fails(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_words(url, "--duration", "20", "--lag-limit-ms", "1e-9")) == 1
    assert "VOID" in capsys.readouterr().out


def test_a_run_that_nobody_answers_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "result.json"
    words = _words("http://127.0.0.1:9", "--requests", "5", "--settle-s", "0", "--lag-limit-ms", "60000")
    assert main([*words, "--json", str(path)]) == 1
    document = json.loads(path.read_text())
    assert (document["failed"], document["attainment"]) == (document["requests"], 0.0)
    assert document["attainment_interval"] is None
    assert "Connection refused" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--duration", "20", "--settle-s", "100"], "--settle-s"),
        (["--requests", "5", "--workload", "nonsense"], "--workload"),
        (["--requests", "5", "--duration", "5"], "--duration"),
    ],
)
def test_bad_arguments_are_named(more: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_words("http://127.0.0.1:9", *more)) == 2
    assert message in capsys.readouterr().err


def test_a_url_that_is_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_words("https://127.0.0.1", "--requests", "5")) == 2
    assert "--url" in capsys.readouterr().err
