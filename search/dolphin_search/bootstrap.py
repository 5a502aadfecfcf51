"""Uncertainty of what is measured on traffic whose requests depend on each other.

Requests of one minute share queues, so they are resampled a block of time at a time; see Künsch, The jackknife and the
bootstrap for general stationary observations, Annals of Statistics 17 (1989).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dolphin_sim.outcomes import Outcomes

BLOCK_S = 60.0
RESAMPLES = 2_000
LEVEL = 0.95

Sums = NDArray[np.float64]
Interval = tuple[float, float]


def block_sums(outcomes: Sequence[Outcomes], values: Sequence[NDArray[np.bool_]]) -> Sums:
    """Return, for each block of time of each episode, the sum of the values and the number of requests: blocks × 2."""
    blocks: list[Sums] = []
    for part, part_values in zip(outcomes, values, strict=True):
        block = (part.arrival_s // BLOCK_S).astype(np.int64)
        if len(block):
            # No request is scored while the cluster settles: those blocks are no part of the sample.
            block -= block.min()
        blocks.append(np.column_stack([np.bincount(block, weights=part_values), np.bincount(block)]))
    return np.concatenate(blocks)


def mean_interval(sums: Sums, *, seed: int = 0) -> Interval:
    """Return the 95 % interval of the mean."""
    return _interval(_resampled_means(sums, seed=seed))


def difference_interval(sums: Sums, other: Sums, *, seed: int = 0) -> Interval:
    """Return the 95 % interval of the mean minus the other mean, over the same blocks: both saw the same arrivals."""
    return _interval(_resampled_means(sums, seed=seed) - _resampled_means(other, seed=seed))


def _resampled_means(sums: Sums, *, seed: int) -> NDArray[np.float64]:
    picks = np.random.default_rng(seed).integers(len(sums), size=(RESAMPLES, len(sums)))
    totals = sums[picks].sum(axis=1)
    means: NDArray[np.float64] = totals[:, 0] / np.maximum(totals[:, 1], 1.0)
    return means


def _interval(values: NDArray[np.float64]) -> Interval:
    low, high = np.quantile(values, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(low), float(high)
