"""The usual rules with their numbers tuned on training episodes, so that learning is not compared with a straw man."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence

import numpy as np

from dolphin_router.contract import Slo
from dolphin_search.attainment import attainments
from dolphin_sim import policy
from dolphin_sim.episode import Episode
from dolphin_sim.policy import Policy
from dolphin_sim.simulation import Cluster

# Token thresholds: nothing, half-octaves from 64 to 128k, everything.
THRESHOLDS = (0.0, *(64 * 2 ** (step / 2) for step in range(23)), math.inf)
PRICES = (0.0, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 20.0)
DYNAMO_LENGTHS = tuple(256.0 * 2**step for step in range(9))
DYNAMO_RATIOS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
DYNAMO_BUSY = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0)


def grids() -> dict[str, list[Policy]]:
    """Return every setting tried of each rule that has numbers."""
    return {
        "tuned-length": [policy.by_length(threshold) for threshold in THRESHOLDS],
        "tuned-effective-length": [policy.by_effective_length(threshold) for threshold in THRESHOLDS],
        "tuned-cost": [policy.by_cost(price) for price in PRICES],
        "tuned-dynamo-isl-bounding": [
            policy.dynamo_isl_bounding(length, ratio, name="tuned-dynamo-isl-bounding")
            for length, ratio in itertools.product(DYNAMO_LENGTHS, DYNAMO_RATIOS)
        ],
        "tuned-dynamo-isl-or-load": [
            policy.dynamo_isl_or_load(length, ratio, busy, name="tuned-dynamo-isl-or-load")
            for length, ratio, busy in itertools.product(DYNAMO_LENGTHS[:5], (0.3, 0.7, 1.0), DYNAMO_BUSY)
        ],
    }


def grid_size(only: Collection[str] | None = None) -> int:
    """Return how many settings there are in all, or of the rules named."""
    return sum(len(settings) for name, settings in grids().items() if only is None or name in only)


def tuned_rules(
    cluster: Cluster,
    slo: Slo,
    episodes: Sequence[Episode],
    *,
    only: Collection[str] | None = None,
    on_done: Callable[[], None] | None = None,
) -> dict[str, Policy]:
    """Return each rule, or each of those named, with the setting of highest attainment, the first of equal ones.
    By name.

    Args:
        cluster: the workers.
        slo: what counts as met.
        episodes: to tune on.
        only: names of rules; None for all.
        on_done: called after each setting, from any thread.
    """
    settings = {name: grid for name, grid in grids().items() if only is None or name in only}
    everything = [setting for grid in settings.values() for setting in grid]
    values = attainments(cluster, slo, episodes, everything, on_done=on_done)
    best: dict[str, Policy] = {}
    start = 0
    for name, grid in settings.items():
        best[name] = grid[int(np.argmax(values[start : start + len(grid)]))]
        start += len(grid)
    return best


def untuned_rules() -> dict[str, Policy]:
    """Return the rules as they come, by name."""
    rules = (
        policy.always_local(),
        policy.always_remote(),
        policy.dynamo_default(),
        policy.dynamo_isl_bounding(),
        policy.dynamo_isl_or_load(),
        policy.llm_d(),
    )
    return {rule.name: rule for rule in rules}
