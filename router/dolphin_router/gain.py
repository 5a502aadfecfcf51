"""What a cluster's action is worth."""

from __future__ import annotations

import math
from typing import NamedTuple

from .contract import Cluster


class Gain(NamedTuple):
    """Measured reward of the chosen action minus that of the other."""

    mean: float
    standard_error: float | None
    """None where that of either reward is unknown."""

    @property
    def within_noise(self) -> bool:
        """Whether the gain is less than two standard errors from 0, or its error unknown."""
        return self.standard_error is None or abs(self.mean) < 2.0 * self.standard_error


def measured_gain(cluster: Cluster) -> Gain | None:
    """Return the gain of the cluster's action; none unless both actions were measured there."""
    local, remote = cluster.rewards.local, cluster.rewards.remote
    if local is None or remote is None:
        return None
    sign = 1.0 if cluster.action == "remote" else -1.0
    error = None
    if local.standard_error is not None and remote.standard_error is not None:
        error = math.hypot(local.standard_error, remote.standard_error)
    return Gain(sign * (remote.mean - local.mean), error)
