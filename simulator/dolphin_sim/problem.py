"""What a policy is to be good at: a cluster, its traffic and the latency promised."""

from __future__ import annotations

from dataclasses import dataclass

from dolphin_router.contract import Slo
from dolphin_sim.episode import Window
from dolphin_sim.simulation import Cluster
from dolphin_sim.workloads import Workload


@dataclass(frozen=True)
class Problem:
    """One case to simulate, to learn a table for, or to compare policies on."""

    cluster: Cluster
    workload: Workload
    slo: Slo
    rate_per_s: float | None
    """Mean arrival rate; none where the user gave none and there is no default for this case."""
    seed: int
    window: Window
