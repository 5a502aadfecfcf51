"""The best table of all, where there are few enough to try them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from dolphin_router.contract import Slo
from dolphin_search.attainment import attainments
from dolphin_search.environments.base import Actions
from dolphin_sim.episode import Episode
from dolphin_sim.policy import Policy, with_actions
from dolphin_sim.simulation import Cluster

MOST_CLUSTERS = 10


def all_tables(clusters: int) -> list[Actions]:
    """Return all 2^K tables.

    Raises:
        ValueError: there are too many of them.
    """
    if clusters > MOST_CLUSTERS:
        raise ValueError(f"{clusters} clusters have {2**clusters} tables: at most {MOST_CLUSTERS} can be tried out")
    return list(itertools.product((0, 1), repeat=clusters))


def exhaustive_best(
    cluster: Cluster,
    slo: Slo,
    episodes: Sequence[Episode],
    clusters: Policy,
    *,
    on_done: Callable[[], None] | None = None,
) -> tuple[Actions, float]:
    """Return the table with the highest attainment on these episodes, and that attainment.

    Args:
        cluster: the workers.
        slo: what counts as met.
        episodes: to try all tables on.
        clusters: the policy whose actions are replaced.
        on_done: called after each table, from any thread.
    """
    tables = all_tables(len(clusters.decider.actions))
    policies = [with_actions(clusters, actions) for actions in tables]
    values = attainments(cluster, slo, episodes, policies, on_done=on_done)
    best = int(np.argmax(values))
    return tables[best], float(values[best])
