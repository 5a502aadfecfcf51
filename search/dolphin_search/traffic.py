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
_USES: dict[Purpose, str] = {
    "history": "the history",
    "tuning": "tuning",
    "search": "the search",
    "test": "the comparison",
}


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
        return self.with_expected_lengths(episode)

    def with_expected_lengths(self, episode: Episode) -> Episode:
        """Return an episode with what this source's predictor expects of its answers."""
        expected = self.predictor.expected_output_tokens(episode.requests, seed=episode.seed)
        return replace(episode, expected_output_tokens=expected)

    def episodes(self, purpose: Purpose, count: int, *, first: int = 0) -> list[Episode]:
        """Return ``count`` episodes of a purpose, from the one with number ``first``."""
        return [self.episode(purpose, number) for number in range(first, first + count)]

    def scored_episodes(self, purpose: Purpose, count: int, *, first: int = 0) -> list[Episode]:
        """Return the same, of which one at least has a request that counts.

        Raises:
            ValueError: none has one.
        """
        episodes = self.episodes(purpose, count, first=first)
        if not any(episode.is_scored.any() for episode in episodes):
            raise ValueError(
                f"no request arrives in the periods for {_USES[purpose]}, {count} of {self.window.period_s:g} s at "
                f"{self.rate_per_s:g} requests/s; raise the rate or lengthen the period"
            )
        return episodes
