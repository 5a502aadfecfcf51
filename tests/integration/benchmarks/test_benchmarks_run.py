"""The short benchmarks run and keep the names of their figures. How fast this machine is, is not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("decision.py", {"k8_us", "k16_us", "mixture_k8_us", "mixture_k16_us", "rule_us"}),
        pytest.param("simulator.py", {"simulated_s_per_wall_s"}, marks=pytest.mark.slow),
        pytest.param("prefix_index.py", {"view_8k_4_workers_us", "match_8k_4_workers_us"}, marks=pytest.mark.slow),
    ],
)
def test_a_benchmark_prints_its_figures(name: str, figures: set[str]) -> None:
    run = subprocess.run(
        [sys.executable, str(BENCHMARKS / name), "--json"], capture_output=True, text=True, timeout=300, check=True
    )
    printed = json.loads(run.stdout)
    assert figures <= printed.keys()
    assert all(printed[figure] > 0 for figure in figures)
