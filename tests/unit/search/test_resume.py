"""``dolphin-search learn`` interrupted and gone on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dolphin_search.cli import main
from dolphin_search.environments import SimulatedEnvironment

ROUNDS = 8
QUICK = [
    "learn", "--no-compare", "--period-s", "60", "--settle-s", "20", "--clusters", "3", "--periods-per-round", "1",
]  # fmt: skip


def learn(folder: Path, *words: str, rounds: int = ROUNDS) -> int:
    return main([*QUICK, "--rounds", str(rounds), "--out", str(folder / "table.json"), *words])


def interrupt(monkeypatch: pytest.MonkeyPatch, *, at: int) -> None:
    measure = SimulatedEnvironment.measure

    def interrupted(self: SimulatedEnvironment, actions: Any, *, round_number: int) -> Any:
        if round_number == at:
            raise KeyboardInterrupt
        return measure(self, actions, round_number=round_number)

    monkeypatch.setattr(SimulatedEnvironment, "measure", interrupted)


def content(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "table.json").read_bytes())
    del document["created_at"]
    return document


@pytest.fixture(scope="module", params=["common", "fresh"])
def arrivals(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def undisturbed(arrivals: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the table of a search that nothing interrupted."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert learn(folder, "--arrivals", arrivals) == 0
    return folder


@pytest.mark.parametrize("at", range(1, ROUNDS))
def test_a_search_interrupted_after_any_round_ends_in_the_same_table(
    undisturbed: Path, arrivals: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], at: int
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        interrupt(monkeypatch, at=at)
        assert learn(tmp_path, "--arrivals", arrivals) == 130
    assert "--resume" in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.json.checkpoint"]
    assert learn(tmp_path, "--arrivals", arrivals, "--resume") == 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.json"]
    resumed, expected = ((folder / "table.json").read_text("utf-8") for folder in (tmp_path, undisturbed))
    created = [json.loads(text)["created_at"] for text in (resumed, expected)]
    # Byte by byte, but for the moment.
    assert resumed.replace(created[0], "") == expected.replace(created[1], "")


def test_a_search_interrupted_before_its_first_round_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        interrupt(monkeypatch, at=0)
        assert learn(tmp_path) == 130
    assert "no round was finished" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_search_may_go_on_for_more_rounds_or_end_at_once_but_not_undo_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        interrupt(monkeypatch, at=4)
        assert learn(tmp_path) == 130
    checkpoint = (tmp_path / "table.json.checkpoint").read_bytes()
    capsys.readouterr()
    assert learn(tmp_path, "--resume", rounds=3) == 2
    message = capsys.readouterr().err
    assert "--rounds" in message
    assert "4 rounds" in message
    assert (tmp_path / "table.json.checkpoint").read_bytes() == checkpoint
    assert learn(tmp_path, "--resume", rounds=4) == 0
    assert "rounds: 0/0" in capsys.readouterr().err
    ended = content(tmp_path)
    assert ended["provenance"]["rounds"] == 4
    (tmp_path / "table.json.checkpoint").write_bytes(checkpoint)
    assert learn(tmp_path, "--resume", rounds=ROUNDS + 1) == 0
    whole = tmp_path / "whole"
    whole.mkdir()
    assert learn(whole, rounds=ROUNDS + 1) == 0
    assert content(tmp_path) == content(whole)
