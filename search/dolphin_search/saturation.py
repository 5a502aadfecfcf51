"""The arrival rate at which a policy's attainment falls to a target: the load that tables are learned under."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from dolphin_router.contract import Slo
from dolphin_sim.episode import Episode, run_episode
from dolphin_sim.policy import Policy
from dolphin_sim.simulation import Cluster
from dolphin_sim.workloads import TooManyRequests

LARGEST_FACTOR = 256.0
"""How far from the first guess rates are tried, both ways."""
STEPS = 8
"""Halvings of the factor 2 between a rate that is too low and one that is too high: to within 0.3 %."""


def saturated_rate(
    cluster: Cluster,
    slo: Slo,
    episodes_at: Callable[[float], Sequence[Episode]],
    policy: Policy,
    *,
    target: float,
    first_guess_per_s: float,
) -> float:
    """Return the highest requests a second at which the policy still attains ``target``.

    The guess is halved or doubled until the rate lies between two, then bisected.

    Args:
        cluster: the workers.
        slo: what counts as met.
        episodes_at: episodes at a rate; equal rates give equal ones.
        policy: that is measured.
        target: attainment, between 0 and 1.
        first_guess_per_s: where to begin.

    Returns:
        0 when the target is attained at no rate down to 1/256 of the guess, infinity when at every rate up to 256 times
        the guess, or up to the highest that the workload has requests for.

    Raises:
        TooManyRequests: the workload has too few requests for the first guess.
    """

    def attains(rate_per_s: float) -> bool:
        is_met = [run_episode(cluster, episode, policy).is_met(slo) for episode in episodes_at(rate_per_s)]
        together = np.concatenate(is_met)
        # A window without requests breaks no promise.
        return len(together) == 0 or float(together.mean()) >= target

    low = first_guess_per_s
    while not attains(low):
        low /= 2
        if low * LARGEST_FACTOR < first_guess_per_s:
            return 0.0
    high = 2 * low
    try:
        while attains(high):
            low, high = high, 2 * high
            if low > LARGEST_FACTOR * first_guess_per_s:
                return math.inf
    except TooManyRequests:
        return math.inf
    for _ in range(STEPS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if attains(middle) else (low, middle)
    return low
