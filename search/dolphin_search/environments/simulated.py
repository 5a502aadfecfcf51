"""Periods in virtual time."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from dolphin_router.contract import Slo
from dolphin_search.environments.base import Actions
from dolphin_search.measurement import Measurement, measure
from dolphin_search.traffic import EpisodeSource
from dolphin_sim.episode import Episode, run_episode
from dolphin_sim.policy import Policy, with_actions
from dolphin_sim.simulation import Cluster

Arrivals = Literal["common", "fresh"]


class SimulatedEnvironment:
    """One episode a period, on a cluster that starts empty and settles under the table that is measured.

    Args:
        cluster: the workers.
        slo: what counts as met.
        clusters: the policy whose actions the candidate tables replace.
        source: of episodes for learning.
        arrivals: ``common``, every period has the first episode's arrivals, so that tables are compared on equal
            terms; ``fresh``, every period has its own, as in a live search.
    """

    def __init__(
        self, *, cluster: Cluster, slo: Slo, clusters: Policy, source: EpisodeSource, arrivals: Arrivals
    ) -> None:
        self._cluster = cluster
        self._slo = slo
        self._clusters = clusters
        self._source = source
        self._arrivals = arrivals
        self._episode = lru_cache(maxsize=2)(self._make_episode)

    @property
    def is_repeatable(self) -> bool:
        """True with common arrivals."""
        return self._arrivals == "common"

    def measure(self, actions: Actions, *, period: int) -> Measurement:
        """Simulate the period under this table."""
        episode = self._episode(0 if self.is_repeatable else period)
        outcomes = run_episode(self._cluster, episode, with_actions(self._clusters, actions))
        return measure(outcomes, self._slo, clusters=len(actions))

    def _make_episode(self, number: int) -> Episode:
        return self._source.episode("search", number)
