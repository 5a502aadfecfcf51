"""The loop: a sampler proposes, an environment measures, every period is kept."""

from __future__ import annotations

from collections.abc import Callable

from dolphin_search.checkpoint import CheckpointFile
from dolphin_search.environments.base import Actions, Environment
from dolphin_search.samplers.base import Round, Sampler


class Study:
    """One search.

    Args:
        clusters: length of a table.
        sampler: proposes tables.
        environment: measures them.
        checkpoint: where the rounds are kept; nowhere when None.
        rounds: measured before, of a study that goes on.
    """

    def __init__(
        self,
        *,
        clusters: int,
        sampler: Sampler,
        environment: Environment,
        checkpoint: CheckpointFile | None = None,
        rounds: list[Round] | None = None,
    ) -> None:
        self._clusters = clusters
        self._sampler = sampler
        self._environment = environment
        self._checkpoint = checkpoint
        self.rounds: list[Round] = list(rounds or ())

    def run(self, rounds: int, on_round: Callable[[Round], None] | None = None) -> None:
        """Measure until there are ``rounds`` rounds in all, or the sampler has nothing left to ask.

        An interruption, at any point, leaves the checkpoint with all finished periods.
        """
        while len(self.rounds) < rounds:
            actions = self._sampler.ask(
                self.rounds, clusters=self._clusters, is_repeatable=self._environment.is_repeatable
            )
            if actions is None:
                return
            entry = Round(actions, self._environment.measure(actions, round_number=len(self.rounds)))
            self.rounds.append(entry)
            if self._checkpoint is not None:
                self._checkpoint.save(self.rounds)
            if on_round is not None:
                on_round(entry)

    def best(self) -> Actions:
        """Return the best table so far. There must be a round."""
        return self._sampler.best(self.rounds)
