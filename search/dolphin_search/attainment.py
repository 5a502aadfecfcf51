"""Attainment of many policies on the same episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dolphin_router.contract import Slo
from dolphin_search.parallel import map_on_cores
from dolphin_sim.episode import Episode, run_episode
from dolphin_sim.policy import Policy
from dolphin_sim.simulation import Cluster


def attainments(
    cluster: Cluster,
    slo: Slo,
    episodes: Sequence[Episode],
    policies: Sequence[Policy],
    *,
    on_done: Callable[[], None] | None = None,
) -> NDArray[np.float64]:
    """Return the share of requests inside their SLO: over all episodes together, one number a policy.

    Args:
        cluster: the workers, empty at the start of each episode.
        slo: what counts as met.
        episodes: at least one.
        policies: all see the same arrivals.
        on_done: called after each policy, from any thread.
    """

    def attainment(policy: Policy) -> float:
        is_met = [run_episode(cluster, episode, policy).is_met(slo) for episode in episodes]
        if on_done is not None:
            on_done()
        return float(np.concatenate(is_met).mean())

    return np.array(map_on_cores(attainment, policies))
