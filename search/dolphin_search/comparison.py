"""Policies beside each other on held-out arrivals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dolphin_router.contract import Slo
from dolphin_search.bootstrap import Interval, Sums, block_sums, difference_interval, mean_interval
from dolphin_search.measurement import mean_log_latency
from dolphin_search.parallel import map_on_cores
from dolphin_sim.engine.state import REMOTE
from dolphin_sim.episode import Episode, run_episode
from dolphin_sim.outcomes import Outcomes
from dolphin_sim.policy import Policy
from dolphin_sim.simulation import Cluster

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Percentiles:
    """Of a latency, in milliseconds."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values_ms: NDArray[np.float64]) -> Percentiles:
        """Return the percentiles of at least one value; infinite where that many requests had no such latency."""
        with np.errstate(invalid="ignore"):
            between = np.percentile(values_ms, PERCENTILES)
        # Between a finite and an infinite value there is nothing to interpolate.
        above = np.percentile(values_ms, PERCENTILES, method="higher")
        p50, p90, p99 = np.where(np.isfinite(between), between, above)
        return cls(float(p50), float(p90), float(p99))


@dataclass(frozen=True, eq=False)
class PolicyResult:
    """One policy on the test episodes."""

    policy: Policy
    requests: int
    attainment: float
    attainment_interval: Interval
    end_to_end_attainment: float
    """By the end-to-end form of the same limits, whichever form the SLO has."""
    log_latency: float
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    remote_share: float
    reused_share: float
    """Of all prompt tokens, those found in a cache."""
    preemptions: int
    outcomes: tuple[Outcomes, ...]
    """Of each episode."""
    sums: Sums

    def lead_over(self, other: PolicyResult) -> tuple[float, Interval]:
        """Return the difference in attainment and its 95 % interval, paired by blocks of time."""
        return self.attainment - other.attainment, difference_interval(self.sums, other.sums)


def compare(
    cluster: Cluster,
    slo: Slo,
    episodes: Sequence[Episode],
    policies: Sequence[Policy],
    *,
    on_done: Callable[[], None] | None = None,
) -> dict[str, PolicyResult]:
    """Return each policy's result, by name and in the order given. All see the same arrivals.

    Args:
        cluster: the workers, empty at the start of each episode.
        slo: what counts as met.
        episodes: held out from learning and tuning.
        policies: with names of their own.
        on_done: called after each policy, from any thread.
    """

    def result(policy: Policy) -> PolicyResult:
        outcomes = [run_episode(cluster, episode, policy) for episode in episodes]
        if on_done is not None:
            on_done()
        return _summarise(policy, slo, outcomes)

    return {entry.policy.name: entry for entry in map_on_cores(result, policies)}


def _summarise(policy: Policy, slo: Slo, outcomes: list[Outcomes]) -> PolicyResult:
    together = Outcomes.concatenate(outcomes)
    if len(together) == 0:
        raise ValueError("no request arrives in the test periods: raise the rate or lengthen the period")
    is_met = [part.is_met(slo) for part in outcomes]
    sums = block_sums(outcomes, is_met)
    end_to_end = slo.model_copy(update={"kind": "end-to-end"})
    return PolicyResult(
        policy=policy,
        requests=len(together),
        attainment=float(np.concatenate(is_met).mean()),
        attainment_interval=mean_interval(sums),
        end_to_end_attainment=float(together.is_met(end_to_end).mean()),
        log_latency=mean_log_latency(together, slo),
        ttft_ms=Percentiles.of(together.ttft_ms),
        tpot_ms=Percentiles.of(together.tpot_ms),
        remote_share=float((together.path == REMOTE).mean()),
        reused_share=float(together.reused_tokens.sum() / together.prompt_tokens.sum()),
        preemptions=int(together.preemptions.sum()),
        outcomes=tuple(outcomes),
        sums=sums,
    )
