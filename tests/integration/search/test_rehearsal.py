"""Router and emulated engines as processes of their own, traffic over HTTP, and the simulation of the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dolphin_router.contract import Split, write_table
from dolphin_search.learning import LearningSettings, make_table, search
from dolphin_search.preparation import Preparation, PreparationSettings, prepare
from dolphin_search.replay.processes import ClusterPlan, ProcessFailed, running_clusters
from dolphin_search.replay.rehearsal import Candidate, RehearsalPlan, Rehearser, rehearsal_document
from dolphin_search.samplers import ScanThenEpsilonGreedy
from dolphin_sim.cli.problem_arguments import DEFAULT_SLO
from dolphin_sim.episode import Window
from dolphin_sim.hardware import load_profile
from dolphin_sim.problem import Problem
from dolphin_sim.simulation import Cluster
from dolphin_sim.workloads import workload_by_name

PROFILE = load_profile("h200x4-72b")


@pytest.fixture(scope="module")
def candidate(tmp_path_factory: pytest.TempPathFactory) -> Candidate:
    cluster = Cluster(PROFILE, Split(prefill=1, decode=1))
    problem = Problem(cluster, workload_by_name("hybrid"), DEFAULT_SLO, 0.5, 0, Window(period_s=120.0, settle_s=20.0))
    preparation: Preparation = prepare(problem, PreparationSettings(clusters=2, history_episodes=1))
    settings = LearningSettings(sampler=ScanThenEpsilonGreedy(seed=0), rounds=4)
    table = make_table(preparation, settings, search(preparation, settings))
    path = tmp_path_factory.mktemp("rehearsal") / "table.json"
    path.write_bytes(write_table(table))
    return Candidate(preparation, table, path)


@pytest.mark.slow
def test_measurement_agrees_with_the_simulation_of_the_same_arrivals(candidate: Candidate) -> None:
    plan = RehearsalPlan(window=Window(period_s=60.0, settle_s=10.0, tail_s=5.0), time_scale=10.0, simulations=4)
    ended: list[object] = []
    [rehearsal] = Rehearser([candidate], plan).run(ended.append)
    document = rehearsal_document(rehearsal)
    measured = document["measured"]
    assert measured["requests"] == document["predicted"]["requests"] > 10
    assert (measured["failed"], measured["unfinished"], measured["other_lengths"]) == (0, 0, 0)
    assert measured["decision_not_told"] == 0
    # Lightly loaded: nearly all keep the promise and the caches hold the same. Bounds leave room for a busy machine.
    assert document["other_decisions"] <= 0.2
    assert measured["attainment"] >= document["predicted"]["attainment"] - 0.25
    assert len(ended) >= measured["requests"]


def _children(pid: int) -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == pid:
                found.add(int(entry.name))
    return found


def _is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def _until(condition: object, what: str, *, limit_s: float = 30.0) -> None:
    assert callable(condition)
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, f"not within {limit_s:g} s: {what}"
        time.sleep(0.02)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_router_and_engines_with_whoever_started_them(candidate: Candidate, number: int) -> None:
    code = f"""
import time
from pathlib import Path
from dolphin_router.contract import Split
from dolphin_search.replay.processes import ClusterPlan, running_clusters
from dolphin_sim.hardware import load_profile
plan = ClusterPlan(split=Split(prefill=1, decode=1), profile=load_profile("h200x4-72b"), time_scale=10.0,
                   block_tokens=64, table=Path({str(candidate.table_path)!r}))
with running_clusters([plan]):
    print("running", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as starter:
        try:
            assert starter.stdout is not None
            assert starter.stdout.readline() == b"running\n"
            children = _children(starter.pid)
            assert len(children) == 2
            os.kill(starter.pid, number)
            assert starter.wait(20.0) != 0
        finally:
            starter.kill()
    _until(lambda: not any(map(_is_running, children)), "router and engines end")


def test_a_process_that_cannot_start_shows_its_last_lines(tmp_path: Path) -> None:
    plan = ClusterPlan(
        split=Split(prefill=1, decode=1),
        profile=PROFILE,
        time_scale=10.0,
        block_tokens=64,
        table=tmp_path / "missing.json",
    )
    with pytest.raises(ProcessFailed, match=r"(?s)ended with exit code 2.*missing\.json"), running_clusters([plan]):
        pass
