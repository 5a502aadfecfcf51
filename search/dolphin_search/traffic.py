"""Episodes for each purpose, none used for two."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from dolphin_search.output_length.predictors import NoPredictor, Predictor
from dolphin_sim.episode import Episode, Window, make_episode
from dolphin_sim.workloads import Part, Workload

Purpose = Literal["history", "tuning", "search", "test"]

# Seeds of each purpose start apart. Tables are learned from the training part of a workload and compared on its test
# part.
_FIRST_SEED: dict[Purpose, int] = {"test": 0, "history": 0, "tuning": 1_000, "search": 2_000}
_SEEDS_A_STUDY = 10_000


@dataclass(frozen=True)
class EpisodeSource:
    """Draws episodes of one workload at one rate."""

    workload: Workload
    rate_per_s: float
    window: Window
    seed: int
    predictor: Predictor = field(default_factory=NoPredictor)

    def at_rate(self, rate_per_s: float) -> EpisodeSource:
        """Return the same source at another rate."""
        return replace(self, rate_per_s=rate_per_s)

    def with_predictor(self, predictor: Predictor) -> EpisodeSource:
        """Return the same source with expected answer lengths from ``predictor``."""
        return replace(self, predictor=predictor)

    def episode(self, purpose: Purpose, number: int) -> Episode:
        """Return an episode; equal arguments give an equal one."""
        part: Part = "test" if purpose == "test" else "train"
        seed = self.seed * _SEEDS_A_STUDY + _FIRST_SEED[purpose] + number
        episode = make_episode(self.workload, rate_per_s=self.rate_per_s, window=self.window, seed=seed, part=part)
        expected = self.predictor.expected_output_tokens(episode.requests, seed=seed)
        return replace(episode, expected_output_tokens=expected)

    def episodes(self, purpose: Purpose, count: int) -> list[Episode]:
        """Return the first ``count`` episodes of a purpose."""
        return [self.episode(purpose, number) for number in range(count)]
