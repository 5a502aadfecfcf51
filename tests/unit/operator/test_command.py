"""The operator's command says what it cannot do yet."""

from __future__ import annotations

import pytest

from dolphin_operator.cli import main


def test_without_a_controller_it_fails_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1
    assert "controller" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("dolphin-operator ")
