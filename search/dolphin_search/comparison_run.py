"""The whole comparison: tune the rules, find the best table, measure all on held-out arrivals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dolphin_router.contract import RoutingTable, Slo
from dolphin_search import exhaustive
from dolphin_search.comparison import PolicyResult, compare
from dolphin_search.goodput import goodputs_per_s
from dolphin_search.output_length.predictors import PredictorKind
from dolphin_search.traffic import EpisodeSource
from dolphin_search.tuning import grid_size, grids, tuned_rules, untuned_rules
from dolphin_sim import policy
from dolphin_sim.policy import Policy, with_actions
from dolphin_sim.simulation import Cluster

TRAINING_EPISODES = 6
TEST_EPISODES = 12
LEARNED = "learned"
BEST_TABLE = "exhaustive-best"
TABLES = frozenset({LEARNED, BEST_TABLE})


@dataclass(frozen=True, eq=False)
class ComparisonRun:
    """A comparison and what it was of."""

    cluster: Cluster
    slo: Slo
    source: EpisodeSource
    predictor_kind: PredictorKind
    table: RoutingTable | None
    training_episodes: int
    test_episodes: int
    results: dict[str, PolicyResult]
    goodputs_per_s: dict[str, float]

    @property
    def best_rule(self) -> str | None:
        """The name of the rule, tuned or not, with the highest attainment on the test episodes; None without rules."""
        rules = {name: result for name, result in self.results.items() if name not in TABLES}
        return max(rules, key=lambda name: rules[name].attainment, default=None)


@dataclass(frozen=True)
class ComparisonPlan:
    """What a comparison includes."""

    training_episodes: int = TRAINING_EPISODES
    """On which the rules are tuned and the best table is chosen."""
    test_episodes: int = TEST_EPISODES
    with_goodput: bool = True
    with_exhaustive: bool = True
    only: tuple[str, ...] | None = None
    """Names of the policies to measure; None for all."""

    def steps(self, table: RoutingTable | None) -> int:
        """Return how often ``on_step`` will be called."""
        names = self._names(table)
        tables = 2 ** len(table.decider.clusters) if table is not None and BEST_TABLE in names else 0
        return grid_size(names) + tables + len(names) * (2 if self.with_goodput else 1)

    def _names(self, table: RoutingTable | None) -> list[str]:
        """Return which policies are compared, in the order of the result."""
        tables = []
        if table is not None:
            tables.append(LEARNED)
            if self.with_exhaustive and len(table.decider.clusters) <= exhaustive.MOST_CLUSTERS:
                tables.append(BEST_TABLE)
        names = (*tables, *untuned_rules(), *grids())
        return [name for name in names if self.only is None or name in self.only]

    def run(
        self,
        cluster: Cluster,
        slo: Slo,
        source: EpisodeSource,
        predictor_kind: PredictorKind,
        table: RoutingTable | None,
        *,
        on_step: Callable[[], None] | None = None,
    ) -> ComparisonRun:
        """Tune, choose and measure.

        Args:
            cluster: the workers.
            slo: what counts as met.
            source: of episodes, with expected answer lengths.
            predictor_kind: where those come from.
            table: under the name ``learned``; None to compare rules alone.
            on_step: called after each setting, table and policy measured.

        Raises:
            ValueError: a policy that there is none of, or periods in which no request arrives.
        """
        known = replace(self, only=None)._names(table)
        unknown = set(self.only or ()) - set(known)
        if unknown:
            raise ValueError(f"no policy {', '.join(sorted(unknown))} to compare: there are {', '.join(known)}")
        names = self._names(table)
        training = source.scored_episodes("tuning", self.training_episodes)
        test = source.scored_episodes("test", self.test_episodes)
        found = untuned_rules() | tuned_rules(cluster, slo, training, only=names, on_done=on_step)
        if table is not None:
            found[LEARNED] = policy.from_table(table.decider, name=LEARNED)
            if BEST_TABLE in names:
                actions, _ = exhaustive.exhaustive_best(cluster, slo, training, found[LEARNED], on_done=on_step)
                found[BEST_TABLE] = with_actions(found[LEARNED], actions, name=BEST_TABLE)
        policies = [found[name] for name in names]
        results = compare(cluster, slo, test, policies, on_done=on_step)
        return ComparisonRun(
            cluster=cluster,
            slo=slo,
            source=source,
            predictor_kind=predictor_kind,
            table=table,
            training_episodes=self.training_episodes,
            test_episodes=self.test_episodes,
            results=results,
            goodputs_per_s=self._goodputs(cluster, slo, source, policies, on_step),
        )

    def _goodputs(
        self,
        cluster: Cluster,
        slo: Slo,
        source: EpisodeSource,
        policies: Sequence[Policy],
        on_step: Callable[[], None] | None,
    ) -> dict[str, float]:
        return goodputs_per_s(cluster, slo, source, policies, on_done=on_step) if self.with_goodput else {}
