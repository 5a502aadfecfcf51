"""One window of traffic, of which the middle is scored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dolphin_sim.engine.state import Floats
from dolphin_sim.outcomes import Outcomes
from dolphin_sim.policy import Policy
from dolphin_sim.simulation import Cluster, simulate
from dolphin_sim.workloads.requests import Requests
from dolphin_sim.workloads.workload import Part, Workload


@dataclass(frozen=True)
class Window:
    """How long an episode is.

    Requests that arrive while the cluster settles are served and not scored: they fill caches and queues. Those that
    arrive in the tail are not scored either: they keep the load up until the last scored request is under way.
    """

    period_s: float = 600.0
    settle_s: float = 120.0
    tail_s: float = 30.0

    @property
    def duration_s(self) -> float:
        """From the first possible arrival to the last."""
        return self.settle_s + self.period_s + self.tail_s


@dataclass(frozen=True, eq=False)
class Episode:
    """Traffic, what the output-length model says of it, and which of it counts."""

    requests: Requests
    expected_output_tokens: Floats
    is_scored: NDArray[np.bool_]
    seed: int


def make_episode(workload: Workload, *, rate_per_s: float, window: Window, seed: int, part: Part) -> Episode:
    """Return the episode that these arguments name, without expected output lengths (all 0)."""
    requests = workload.episode(rate_per_s=rate_per_s, duration_s=window.duration_s, seed=seed, part=part)
    is_scored = (requests.arrival_s >= window.settle_s) & (requests.arrival_s < window.settle_s + window.period_s)
    return Episode(requests, np.zeros(len(requests)), is_scored, seed)


def run_episode(cluster: Cluster, episode: Episode, policy: Policy) -> Outcomes:
    """Serve the episode on an empty cluster, to its last answer; return the outcomes that count, in order of
    arrival."""
    outcomes = simulate(
        cluster,
        episode.requests,
        policy,
        expected_output_tokens=episode.expected_output_tokens,
        seed=episode.seed,
    )
    return outcomes.select(episode.is_scored)
