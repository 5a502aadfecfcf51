"""When requests or conversations begin: arrival processes that can be drawn window by window."""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np

from dolphin_sim.workloads.requests import Floats

ArrivalKind = Literal["poisson", "bursty"]

# Our choice for bursty traffic: a quarter of the time at 2.5 times the mean rate, bursts of 20 s on average.
BUSY_FACTOR = 2.5
BUSY_SHARE = 0.25
BUSY_MEAN_S = 20.0
CALM_FACTOR = (1 - BUSY_SHARE * BUSY_FACTOR) / (1 - BUSY_SHARE)
CALM_MEAN_S = BUSY_MEAN_S * (1 - BUSY_SHARE) / BUSY_SHARE

MOST_ARRIVALS = 1_000_000
"""Of one piece, by its mean: a million requests of long prompts take about 6 GB."""


class TooManyRequests(ValueError):
    """A window asks for more requests than its workload has, or than are drawn at once."""


class ArrivalProcess(Protocol):
    """Arrival times from a start on, drawn piece by piece."""

    def until(self, stop_s: float) -> Floats:
        """Sorted arrival times, float64[n], from the last stop (or the start) to stop_s (excluded).

        Raises:
            TooManyRequests: the piece has more than MOST_ARRIVALS on average.
        """
        ...


class PoissonArrivals:
    """Arrivals that know nothing of each other."""

    def __init__(self, random: np.random.Generator, *, rate_per_s: float, start_s: float = 0.0) -> None:
        self._random = random
        self._rate_per_s = rate_per_s
        self._now_s = start_s

    def until(self, stop_s: float) -> Floats:
        check_arrivals(rate_per_s=self._rate_per_s, duration_s=stop_s - self._now_s)
        times = _uniform_times(self._random, rate_per_s=self._rate_per_s, start_s=self._now_s, stop_s=stop_s)
        self._now_s = stop_s
        return times


class BurstyArrivals:
    """A two-state Markov-modulated Poisson process: calm and busy spells of exponential length.

    The rate is CALM_FACTOR or BUSY_FACTOR times the mean. The first spell is drawn as if the process had been running
    for ever, so that the mean rate holds from the start. At 1 request/s, counts in windows of a minute have about four
    times the standard deviation of Poisson counts.
    """

    def __init__(self, random: np.random.Generator, *, rate_per_s: float, start_s: float = 0.0) -> None:
        self._random = random
        self._rate_per_s = rate_per_s
        self._now_s = start_s
        self._busy = bool(random.random() < BUSY_SHARE)
        self._spell_end_s = start_s + self._spell_s()

    def until(self, stop_s: float) -> Floats:
        check_arrivals(rate_per_s=self._rate_per_s, duration_s=stop_s - self._now_s)
        pieces = []
        while self._now_s < stop_s:
            if self._now_s >= self._spell_end_s:
                self._busy = not self._busy
                self._spell_end_s = self._now_s + self._spell_s()
            piece_stop_s = min(stop_s, self._spell_end_s)
            rate_per_s = self._rate_per_s * (BUSY_FACTOR if self._busy else CALM_FACTOR)
            pieces.append(_uniform_times(self._random, rate_per_s=rate_per_s, start_s=self._now_s, stop_s=piece_stop_s))
            self._now_s = piece_stop_s
        return np.concatenate([np.zeros(0), *pieces])

    def _spell_s(self) -> float:
        return float(self._random.exponential(BUSY_MEAN_S if self._busy else CALM_MEAN_S))


def arrival_process(
    kind: ArrivalKind, random: np.random.Generator, *, rate_per_s: float, start_s: float = 0.0
) -> ArrivalProcess:
    """The arrival process of that name.

    Raises:
        ValueError: an unknown kind.
    """
    if kind == "poisson":
        return PoissonArrivals(random, rate_per_s=rate_per_s, start_s=start_s)
    if kind == "bursty":
        return BurstyArrivals(random, rate_per_s=rate_per_s, start_s=start_s)
    raise ValueError(f"arrival: {kind!r} is not 'poisson' or 'bursty'")


def check_arrivals(*, rate_per_s: float, duration_s: float) -> None:
    """Refuse a piece of traffic that memory might not hold.

    Raises:
        TooManyRequests: it has more than MOST_ARRIVALS on average.
    """
    if rate_per_s * duration_s > MOST_ARRIVALS:
        raise TooManyRequests(
            f"{rate_per_s:g} arrivals/s for {duration_s:g} s are more than {MOST_ARRIVALS:,}, the most that are drawn"
            " at once; take a lower rate or a shorter window"
        )


def _uniform_times(random: np.random.Generator, *, rate_per_s: float, start_s: float, stop_s: float) -> Floats:
    # Given their number, the times of a Poisson process are uniform: no gap needs to be carried over to the next piece.
    count = random.poisson(rate_per_s * max(0.0, stop_s - start_s))
    return np.sort(random.uniform(start_s, stop_s, count))
