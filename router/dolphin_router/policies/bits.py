"""One learned action for each cluster."""

from __future__ import annotations

import math

from dolphin_router.assignment import likeliest_component, nearest_centre, whitener
from dolphin_router.contract import Bits, Cluster
from dolphin_router.decision import Action, Decision
from dolphin_router.features import Features, standardise
from dolphin_router.load import Load

REASON = "cluster"


class NearestCentreBits:
    """The action of the cluster whose centre is nearest."""

    def __init__(self, bits: Bits) -> None:
        self._mean = bits.transform.mean
        self._scale = bits.transform.scale
        self._centres = tuple(cluster.centre for cluster in bits.clusters)
        self._count = len(bits.clusters)
        self._actions = _actions(bits)

    def decide(self, features: Features, load: Load) -> Decision:
        """Return the decision; the load does not change it."""
        mean, scale = self._mean, self._scale
        cluster, squared_distance = nearest_centre(
            standardise(features[0], mean[0], scale[0]),
            standardise(features[1], mean[1], scale[1]),
            standardise(features[2], mean[2], scale[2]),
            standardise(features[3], mean[3], scale[3]),
            self._centres,
            self._count,
        )
        return Decision(self._actions[cluster], cluster, REASON, math.sqrt(squared_distance))


class LikeliestComponentBits:
    """The action of the mixture component that the request most probably belongs to."""

    def __init__(self, bits: Bits) -> None:
        self._mean = bits.transform.mean
        self._scale = bits.transform.scale
        self._whiteners = tuple(component_whitener(cluster) for cluster in bits.clusters)
        self._count = len(bits.clusters)
        self._actions = _actions(bits)

    def decide(self, features: Features, load: Load) -> Decision:
        """Return the decision; the load does not change it."""
        mean, scale = self._mean, self._scale
        cluster, log_density = likeliest_component(
            standardise(features[0], mean[0], scale[0]),
            standardise(features[1], mean[1], scale[1]),
            standardise(features[2], mean[2], scale[2]),
            standardise(features[3], mean[3], scale[3]),
            self._whiteners,
            self._count,
        )
        squared_distance = 2.0 * (self._whiteners[cluster][14] - log_density)
        # Rounding can take the distance to a component's very mean a little below 0.
        return Decision(self._actions[cluster], cluster, REASON, math.sqrt(max(squared_distance, 0.0)))


def component_whitener(cluster: Cluster) -> tuple[float, ...]:
    """Return the numbers with which a mixture's cluster is weighed.

    Raises:
        ValueError: the cluster is not part of a mixture.
    """
    if cluster.precision_cholesky is None or cluster.weight is None:
        raise ValueError("a cluster of a k-means clustering has no mixture parts")
    return whitener(cluster.centre, cluster.precision_cholesky, cluster.weight)


def _actions(bits: Bits) -> tuple[Action, ...]:
    return tuple(Action.from_text(cluster.action) for cluster in bits.clusters)
