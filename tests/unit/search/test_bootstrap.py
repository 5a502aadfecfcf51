"""Intervals of what was measured on blocks of time."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from dolphin_search.bootstrap import block_sums, difference_interval, mean_interval
from dolphin_sim.outcomes import Outcomes


def arriving(arrival_s: np.ndarray) -> Outcomes:
    return Outcomes(**{field.name: arrival_s for field in fields(Outcomes)})


def test_time_before_the_first_scored_request_is_no_part_of_the_sample() -> None:
    arrivals = np.arange(120.0, 720.0, 1.0)
    sums = block_sums([arriving(arrivals)], [np.ones(len(arrivals), dtype=bool)])
    assert sums.tolist() == [[60.0, 60.0]] * 10


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        arrivals = np.sort(random.uniform(120.0, 3_720.0, 600))
        # Requests of one minute share their luck.
        luck = random.uniform(0.4, 1.0, 70)[(arrivals // 60).astype(int)]
        low, high = mean_interval(block_sums([arriving(arrivals)], [random.random(600) < luck]))
        covered += low <= 0.7 <= high
    assert covered / 200 == pytest.approx(0.95, abs=0.05)


def test_equal_policies_differ_by_nothing() -> None:
    arrivals = np.arange(0.0, 600.0, 2.0)
    sums = block_sums([arriving(arrivals)], [np.random.default_rng(1).random(len(arrivals)) < 0.5])
    assert difference_interval(sums, sums) == (0.0, 0.0)
