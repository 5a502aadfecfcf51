"""Arrival processes: mean rate, burstiness, and pieces that join to one process."""

import numpy as np
import pytest

from dolphin_sim.workloads.arrivals import ArrivalKind, arrival_process


def times_of(kind: ArrivalKind, *, seed: int, stop_s: float, pieces: int = 1) -> np.ndarray:
    process = arrival_process(kind, np.random.default_rng(seed), rate_per_s=2.0)
    return np.concatenate([process.until(stop_s * (piece + 1) / pieces) for piece in range(pieces)])


def counts_by_minute(times_s: np.ndarray, stop_s: float) -> np.ndarray:
    return np.histogram(times_s, bins=np.arange(0, stop_s + 1, 60))[0]


@pytest.mark.parametrize("pieces", [1, 1000])
def test_poisson_gaps_vary_as_much_as_their_mean(pieces: int) -> None:
    gaps_s = np.diff(times_of("poisson", seed=1, stop_s=20_000, pieces=pieces))
    assert gaps_s.mean() == pytest.approx(0.5, rel=0.02)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(1.0, abs=0.02)
    # No gap tells anything about the next one.
    assert abs(np.corrcoef(gaps_s[:-1], gaps_s[1:])[0, 1]) < 0.02


@pytest.mark.parametrize("pieces", [1, 1000])
def test_bursty_arrivals_have_the_mean_rate_and_vary_more(pieces: int) -> None:
    stop_s = 60_000.0
    times_s = times_of("bursty", seed=2, stop_s=stop_s, pieces=pieces)
    assert (np.diff(times_s) >= 0).all()
    assert len(times_s) / stop_s == pytest.approx(2.0, rel=0.05)
    counts = counts_by_minute(times_s, stop_s)
    poisson = counts_by_minute(times_of("poisson", seed=2, stop_s=stop_s), stop_s)
    assert poisson.var() / poisson.mean() == pytest.approx(1.0, abs=0.15)
    assert counts.var() / counts.mean() > 8


@pytest.mark.parametrize("kind", ["poisson", "bursty"])
def test_times_lie_between_the_start_and_the_stop(kind: ArrivalKind) -> None:
    process = arrival_process(kind, np.random.default_rng(3), rate_per_s=5.0, start_s=-100.0)
    before, after = process.until(0.0), process.until(50.0)
    assert before.min() >= -100
    assert before.max() < 0 <= after.min()
    assert after.max() < 50
    assert len(process.until(50.0)) == 0


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="'weekly' is not 'poisson' or 'bursty'"):
        arrival_process("weekly", np.random.default_rng(0), rate_per_s=1.0)  # type: ignore[arg-type]
