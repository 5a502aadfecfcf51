"""Distributions of token counts, durations and numbers of turns, each with the mean it is named for."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from dolphin_sim.workloads.requests import Floats, Ints


class Lengths(Protocol):
    """A distribution of token counts."""

    @property
    def mean(self) -> float: ...

    @property
    def high(self) -> float:
        """The largest value."""
        ...

    def tokens(self, random: np.random.Generator, count: int) -> Ints: ...


class LogNormal:
    """Log-normal with deviation sigma of the logarithm, cut to [low, high], whose mean *after* cutting is given.

    >>> LogNormal(8088, sigma=0.5, low=256, high=120_000).mean
    8088
    """

    def __init__(self, mean: float, *, sigma: float, low: float, high: float) -> None:
        if not 0 < low < mean < high:
            raise ValueError(f"mean: {mean} is not between the limits {low} and {high}")
        self.mean = mean
        self.sigma = sigma
        self.low = low
        self.high = high
        self._log_median = self._find_log_median()

    def values(self, random: np.random.Generator, count: int) -> Floats:
        """float64[count]."""
        return np.clip(random.lognormal(self._log_median, self.sigma, count), self.low, self.high)

    def tokens(self, random: np.random.Generator, count: int) -> Ints:
        """int64[count]: values rounded to whole tokens."""
        return np.rint(self.values(random, count)).astype(np.int64)

    def _find_log_median(self) -> float:
        # The mean grows with the median, so halving the interval finds it.
        below, above = math.log(self.low), math.log(self.high)
        for _ in range(60):
            middle = (below + above) / 2
            if self._cut_mean(middle) < self.mean:
                below = middle
            else:
                above = middle
        return (below + above) / 2

    def _cut_mean(self, log_median: float) -> float:
        low = (math.log(self.low) - log_median) / self.sigma
        high = (math.log(self.high) - log_median) / self.sigma
        inside = _normal_share_below(high - self.sigma) - _normal_share_below(low - self.sigma)
        return (
            self.low * _normal_share_below(low)
            + self.high * (1 - _normal_share_below(high))
            + math.exp(log_median + self.sigma**2 / 2) * inside
        )


class Mixture:
    """A share of the values from one distribution, the rest from another."""

    def __init__(self, first: LogNormal, second: LogNormal, *, second_share: float) -> None:
        self.first = first
        self.second = second
        self.second_share = second_share
        self.mean = first.mean * (1 - second_share) + second.mean * second_share
        self.high = max(first.high, second.high)

    def tokens(self, random: np.random.Generator, count: int) -> Ints:
        """int64[count]."""
        second = random.random(count) < self.second_share
        return np.where(second, self.second.tokens(random, count), self.first.tokens(random, count))


class Counts:
    """Numbers from 1 to most, each less likely than the one before by a constant factor, with the given mean."""

    def __init__(self, mean: float, *, most: int) -> None:
        if not 1 < mean < (1 + most) / 2:
            raise ValueError(f"mean: {mean} is not between 1 and {(1 + most) / 2}, half of the most")
        self.most = most
        self.numbers = np.arange(1, most + 1)
        below, above = 0.0, 1.0
        for _ in range(60):
            factor = (below + above) / 2
            weights = factor ** (self.numbers - 1.0)
            self.shares: Floats = weights / weights.sum()
            if self.shares @ self.numbers < mean:
                below = factor
            else:
                above = factor
        self.mean = float(self.shares @ self.numbers)

    def sample(self, random: np.random.Generator, count: int) -> Ints:
        """int64[count]."""
        return self._pick(random, count, self.shares)

    def sample_open(self, random: np.random.Generator, count: int) -> Ints:
        """int64[count]: numbers of a group met through one of its members, so that large groups are met more often."""
        return self._pick(random, count, self.shares * self.numbers / self.mean)

    def _pick(self, random: np.random.Generator, count: int, shares: Floats) -> Ints:
        # The last bound is left out: a sum of shares just below 1 must not give most + 1.
        return 1 + np.searchsorted(np.cumsum(shares)[:-1], random.random(count), side="right").astype(np.int64)


def _normal_share_below(deviations: float) -> float:
    return (1 + math.erf(deviations / math.sqrt(2))) / 2
