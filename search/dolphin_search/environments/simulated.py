"""Periods in virtual time."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from dolphin_router.contract import Slo
from dolphin_search.environments.base import Actions
from dolphin_search.measurement import Measurement, measure
from dolphin_search.parallel import map_on_cores
from dolphin_search.traffic import EpisodeSource
from dolphin_sim.episode import Episode, run_episode
from dolphin_sim.outcomes import Outcomes
from dolphin_sim.policy import Policy, with_actions
from dolphin_sim.simulation import Cluster

Arrivals = Literal["common", "fresh"]


class SimulatedEnvironment:
    """A round is one or more periods, each on a cluster that starts empty and settles under the table that is measured.

    Args:
        cluster: the workers.
        slo: what counts as met.
        clusters: the policy whose actions the candidate tables replace.
        source: of episodes for learning.
        arrivals: ``common``, every round has the arrivals of the first, so that tables are compared on equal terms;
            ``fresh``, every round has its own, as in a live search.
        periods_per_round: over which a table's measurement is taken together.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        slo: Slo,
        clusters: Policy,
        source: EpisodeSource,
        arrivals: Arrivals,
        periods_per_round: int,
    ) -> None:
        self._cluster = cluster
        self._slo = slo
        self._clusters = clusters
        self._source = source
        self._arrivals = arrivals
        self._periods_per_round = periods_per_round
        self._episodes = lru_cache(maxsize=1)(self._make_episodes)

    @property
    def is_repeatable(self) -> bool:
        """True with common arrivals."""
        return self._arrivals == "common"

    def measure(self, actions: Actions, *, round_number: int) -> Measurement:
        """Simulate the round's periods under this table.

        Raises:
            ValueError: no request arrives in them.
        """
        policy = with_actions(self._clusters, actions)
        outcomes = map_on_cores(
            lambda episode: run_episode(self._cluster, episode, policy),
            self._episodes(0 if self.is_repeatable else round_number),
        )
        return measure(Outcomes.concatenate(outcomes), self._slo, clusters=len(actions))

    def _make_episodes(self, round_number: int) -> list[Episode]:
        count = self._periods_per_round
        return self._source.scored_episodes("search", count, first=round_number * count)
