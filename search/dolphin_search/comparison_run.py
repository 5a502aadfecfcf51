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
TABLES = frozenset({"learned", "exhaustive-best"})


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
        policies = len(self._names(table))
        tables = 2 ** len(table.decider.clusters) if table is not None and self._tries_all(table) else 0
        return grid_size(self.only) + tables + policies * (2 if self.with_goodput else 1)

    def _names(self, table: RoutingTable | None) -> list[str]:
        tables = ["learned"] if table is not None else []
        if self._tries_all(table):
            tables.append("exhaustive-best")
        rules = [rule.name for rule in untuned_rules()]
        return [name for name in (*tables, *rules, *grids()) if self._includes(name)]

    def _includes(self, name: str) -> bool:
        return self.only is None or name in self.only

    def _tries_all(self, table: RoutingTable | None) -> bool:
        return (
            self.with_exhaustive
            and self._includes("exhaustive-best")
            and table is not None
            and len(table.decider.clusters) <= exhaustive.MOST_CLUSTERS
        )

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
        """
        known = replace(self, only=None)._names(table)
        unknown = set(self.only or ()) - set(known)
        if unknown:
            raise ValueError(f"no policy {', '.join(sorted(unknown))} to compare: there are {', '.join(known)}")
        training = source.episodes("tuning", self.training_episodes)
        policies: list[Policy] = []
        if table is not None:
            learned = policy.from_table(table.decider)
            policies.append(learned)
            if self._tries_all(table):
                actions, _ = exhaustive.exhaustive_best(cluster, slo, training, learned, on_done=on_step)
                policies.append(with_actions(learned, actions, name="exhaustive-best"))
        policies += [*untuned_rules(), *tuned_rules(cluster, slo, training, only=self.only, on_done=on_step)]
        policies = [entry for entry in policies if self._includes(entry.name)]
        results = compare(cluster, slo, source.episodes("test", self.test_episodes), policies, on_done=on_step)
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
