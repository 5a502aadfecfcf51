"""The published search: a scan of the clusters, then ε-greedy over whole tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dolphin_router.decision import Action
from dolphin_search.environments.base import Actions
from dolphin_search.samplers.base import Round
from dolphin_search.samplers.rewards import RewardName, arm_reward, best_table

MOST_DRAWS = 200


@dataclass(frozen=True)
class ScanThenEpsilonGreedy:
    """Scan both actions of each cluster in turn (2K periods), then replay the best table or try a change of it.

    During the scan every other cluster keeps the best action found so far, so the scan is one pass of coordinate
    ascent. After it, with probability ε a table is explored: the best one with one cluster's action changed, and each
    other one's with probability 1/K. Otherwise the best table is measured again, so that its mean becomes sure. ε
    falls from ``epsilon`` by ``epsilon_decay`` a round to ``least_epsilon``. Where measuring again tells nothing new,
    every round explores a table that was not measured yet.

    The published summary does not give ε, its schedule, the order of the scan or what a change is: these are our own
    choices. Reference: DolphinRouting, Nanjing University, 2026.

    Args:
        seed: of all draws.
        reward: what is made large; ``cluster`` as published, in the scan, and attainment over all after it.
        scan: False leaves the scan out, for the ablation.
        epsilon: probability to explore in the first round after the scan.
        epsilon_decay: factor a round.
        least_epsilon: its floor.
    """

    seed: int = 0
    reward: RewardName = "cluster"
    scan: bool = True
    epsilon: float = 0.6
    epsilon_decay: float = 0.98
    least_epsilon: float = 0.2

    @property
    def name(self) -> str:
        """As provenance gives it."""
        return "scan-then-epsilon-greedy" if self.scan else "epsilon-greedy"

    @property
    def settings(self) -> dict[str, float]:
        """The schedule of ε."""
        return {
            "epsilon": self.epsilon,
            "epsilon_decay": self.epsilon_decay,
            "least_epsilon": self.least_epsilon,
        }

    def ask(self, rounds: Sequence[Round], *, clusters: int, is_repeatable: bool) -> Actions | None:
        """Return the next table of the scan, or after it the best or a changed one."""
        scan_rounds = 2 * clusters if self.scan else 0
        if len(rounds) < scan_rounds:
            cluster, action = divmod(len(rounds), 2)
            return _changed(self._scanned(rounds, clusters, cluster), cluster, action)
        if not rounds:
            return self._scanned(rounds, clusters, 0)
        best = self.best(rounds)
        # Each round draws from its own state, so that the draws do not depend on how the study came here.
        random = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(len(rounds),)))
        if is_repeatable:
            return _untried(best, {entry.actions for entry in rounds}, random)
        epsilon = max(self.least_epsilon, self.epsilon * self.epsilon_decay ** (len(rounds) - scan_rounds))
        return _varied(best, random) if random.random() < epsilon else best

    def best(self, rounds: Sequence[Round]) -> Actions:
        """Return the table with the highest mean reward over all requests."""
        return best_table(rounds, self.reward)

    def _scanned(self, rounds: Sequence[Round], clusters: int, until: int) -> Actions:
        """Return the table in which the clusters before ``until`` have their better action, the others remote."""
        actions = (int(Action.REMOTE),) * clusters
        for cluster in range(until):
            local = arm_reward(rounds[2 * cluster + Action.LOCAL].measurement, self.reward, cluster)
            remote = arm_reward(rounds[2 * cluster + Action.REMOTE].measurement, self.reward, cluster)
            if local > remote:
                actions = _changed(actions, cluster, Action.LOCAL)
        return actions


def _changed(actions: Actions, cluster: int, action: int) -> Actions:
    return (*actions[:cluster], int(action), *actions[cluster + 1 :])


def _varied(actions: Actions, random: np.random.Generator) -> Actions:
    first = int(random.integers(len(actions)))
    others = random.random(len(actions)) < 1 / len(actions)
    return tuple(
        1 - action if cluster == first or others[cluster] else action for cluster, action in enumerate(actions)
    )


def _untried(actions: Actions, tried: set[Actions], random: np.random.Generator) -> Actions | None:
    """Return a change that was not tried; None when all tables were, or so many that draws no longer find one."""
    if len(tried) < 2 ** len(actions):
        for _ in range(MOST_DRAWS):
            table = _varied(actions, random)
            if table not in tried:
                return table
    return None
