"""The highest rate that a policy serves well."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dolphin_router.contract import Slo
from dolphin_search.parallel import map_on_cores
from dolphin_search.saturation import saturated_rate
from dolphin_search.traffic import EpisodeSource
from dolphin_sim.episode import Episode
from dolphin_sim.policy import Policy
from dolphin_sim.simulation import Cluster

TARGET = 0.9
"""DistServe's notion: at least 90 % of requests inside their SLO."""
EPISODES = 3


def goodputs_per_s(
    cluster: Cluster,
    slo: Slo,
    source: EpisodeSource,
    policies: Sequence[Policy],
    *,
    on_done: Callable[[], None] | None = None,
) -> dict[str, float]:
    """Return for each policy the requests a second at which it attains 90 %; 0 where it does at no rate.

    Policies keep the numbers that they were tuned with at the source's rate.
    """

    def episodes_at(rate_per_s: float) -> list[Episode]:
        return source.at_rate(rate_per_s).episodes("test", EPISODES)

    def goodput_per_s(policy: Policy) -> float:
        rate_per_s = saturated_rate(
            cluster, slo, episodes_at, policy, target=TARGET, first_guess_per_s=source.rate_per_s
        )
        if on_done is not None:
            on_done()
        return rate_per_s

    return dict(zip((policy.name for policy in policies), map_on_cores(goodput_per_s, policies), strict=True))
