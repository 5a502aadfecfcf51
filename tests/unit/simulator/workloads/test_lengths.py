"""Length distributions have the mean and the limits that they are named for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolphin_sim.workloads.lengths import Counts, LogNormal, Mixture


@settings(deadline=None, max_examples=15)
@given(st.floats(60, 5000), st.floats(0.2, 1.3), st.integers(0, 99))
def test_a_log_normal_has_its_mean_after_cutting(mean: float, sigma: float, seed: int) -> None:
    lengths = LogNormal(mean, sigma=sigma, low=mean / 4, high=mean * 5)
    values = lengths.tokens(np.random.default_rng(seed), 40_000)
    assert values.mean() == pytest.approx(mean, rel=0.03)
    assert values.min() >= round(mean / 4)
    assert values.max() <= round(mean * 5)


@settings(deadline=None, max_examples=15)
@given(st.floats(1.2, 9.0), st.integers(0, 99))
def test_counts_have_their_mean_and_limits(mean: float, seed: int) -> None:
    counts = Counts(mean, most=19)
    values = counts.sample(np.random.default_rng(seed), 30_000)
    assert counts.mean == pytest.approx(mean, abs=1e-6)
    assert values.mean() == pytest.approx(mean, rel=0.04)
    assert values.min() == 1
    assert values.max() <= 19


def test_a_group_met_through_a_member_is_larger() -> None:
    counts = Counts(4.9, most=19)
    squares = counts.shares @ counts.numbers**2
    met = counts.sample_open(np.random.default_rng(1), 30_000)
    assert met.mean() == pytest.approx(squares / counts.mean, rel=0.02)


def test_a_mixture_has_the_mean_of_its_parts() -> None:
    short, long = LogNormal(80, sigma=0.5, low=8, high=400), LogNormal(500, sigma=0.6, low=32, high=1500)
    mixture = Mixture(short, long, second_share=0.25)
    assert mixture.mean == pytest.approx(185)
    assert mixture.tokens(np.random.default_rng(1), 40_000).mean() == pytest.approx(185, rel=0.02)


@pytest.mark.parametrize("mean", [1.0, 500.0, float("nan")])
def test_a_mean_outside_the_limits_is_refused(mean: float) -> None:
    with pytest.raises(ValueError, match="is not between"):
        LogNormal(mean, sigma=1.0, low=2, high=400)
    with pytest.raises(ValueError, match="is not between"):
        Counts(mean, most=19)
