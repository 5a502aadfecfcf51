"""What page and JSON say of a rehearsal, and of one that is worth nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dolphin_search.replay.answer import Answer
from dolphin_search.replay.rehearsal import Rehearsal, RehearsalPlan
from dolphin_search.replay.result import ReplayResult
from dolphin_search.replay.wording import rehearsal_lines
from dolphin_search.report.case import LearnedCase
from dolphin_search.report.html import report_document, write_report
from dolphin_sim.episode import Window, run_episode
from dolphin_sim.policy import from_table

TIME_SCALE = 10.0


def _rehearsal(case: LearnedCase, *, lag_s: float = 0.0, failed: int = 0) -> Rehearsal:
    """A measurement that is the simulation itself, but for requests that fail."""
    window = Window(period_s=60.0, settle_s=20.0, tail_s=5.0)
    [episode] = replace(case.preparation.source, window=window).episodes("test", 1)
    policy = from_table(case.table.decider)
    whole = run_episode(case.preparation.cluster, replace(episode, is_scored=np.ones_like(episode.is_scored)), policy)
    answers = []
    for arrival_s, first_s, last_s, tokens, path in zip(
        whole.arrival_s, whole.first_token_s, whole.finish_s, whole.output_tokens, whole.path, strict=True
    ):
        due_s, first_s, last_s = (value / TIME_SCALE for value in (arrival_s, first_s, last_s))
        action = "remote" if path else "local"
        times = (due_s + lag_s, first_s + lag_s, last_s + lag_s)
        answers.append(Answer(due_s, *times, int(tokens), int(tokens), 200, "whole", action=action))  # type: ignore[arg-type]
    scored = np.flatnonzero(episode.is_scored)
    for row in scored[:failed]:
        answers[row].end, answers[row].reason = "failed", "status 500: <lost>"
    simulated = whole.select(episode.is_scored)
    return Rehearsal(
        plan=RehearsalPlan(window=window, time_scale=TIME_SCALE),
        split=case.table.split,
        rate_per_s=1.2,
        slo=case.table.slo,
        simulated=simulated,
        delayed=[simulated, simulated],
        result=ReplayResult(episode.requests, episode.is_scored, answers, TIME_SCALE, case.table.slo),
        stated_attainment=0.5,
    )


def _page(case: LearnedCase, rehearsal: Rehearsal, path: Path) -> str:
    write_report(path, [replace(case, rehearsal=rehearsal)], title="test")
    return path.read_text()


def test_a_measurement_equal_to_the_simulation_agrees_in_everything(case: LearnedCase, tmp_path: Path) -> None:
    rehearsal = _rehearsal(case)
    assert rehearsal.difference == 0.0
    assert rehearsal.other_decisions == 0.0
    assert rehearsal.other_verdicts == 0.0
    page = _page(case, rehearsal, tmp_path / "report.html")
    assert "Over HTTP" in page
    assert "0.0 points, within 5" in page
    assert "emulated engines" in page
    [document] = report_document([replace(case, rehearsal=rehearsal)])["cases"]
    assert document["rehearsal"]["agrees"] is True
    json.dumps(document, allow_nan=False)


def test_a_large_difference_is_said(case: LearnedCase, tmp_path: Path) -> None:
    rehearsal = _rehearsal(case, failed=15)
    met = int(rehearsal.simulated.is_met(rehearsal.slo)[:15].sum())
    assert met > 0
    assert rehearsal.difference == pytest.approx(-met / len(rehearsal.simulated))
    page = _page(case, rehearsal, tmp_path / "report.html")
    assert "15 requests failed" in page
    assert any("15 requests failed: status 500: <lost>" in line for line in rehearsal_lines(rehearsal))
    if not rehearsal.agrees:
        assert "more than 5 apart" in page


def test_a_void_measurement_is_not_judged(case: LearnedCase, tmp_path: Path) -> None:
    rehearsal = _rehearsal(case, lag_s=0.5)
    page = _page(case, rehearsal, tmp_path / "report.html")
    assert "No judgement" in page
    assert "within 5" not in page
    [document] = report_document([replace(case, rehearsal=rehearsal)])["cases"]
    assert document["rehearsal"]["agrees"] is None


def test_a_case_without_one_has_no_such_section(case: LearnedCase, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, [case], title="test")
    assert "Over HTTP" not in path.read_text()
    assert report_document([case])["cases"][0]["rehearsal"] is None
