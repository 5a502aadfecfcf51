"""Why a table decides as it does for one request."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from .assignment import likeliest_component, nearest_centre
from .contract import Bits, Cluster, KMeans, RoutingTable, TableContent
from .decision import Decision
from .features import FEATURE_NAMES, Features, features_in_tokens, standardise
from .gain import measured_gain
from .load import Load
from .policies import policy_from_table
from .policies.bits import component_whitener


class Candidate(NamedTuple):
    """A cluster that the request could belong to."""

    cluster: int
    distance: float
    """As in ``Decision``."""
    log_density: float | None
    """Of the mixture's component at the request, weight included; none for k-means."""


class FeatureGap(NamedTuple):
    """How far apart the request and its cluster's centre are in one feature."""

    name: str
    tokens: float
    centre_tokens: float
    z: float
    centre_z: float


@dataclass(frozen=True)
class Explanation:
    """A decision with everything that led to it."""

    decision: Decision
    candidates: tuple[Candidate, ...]
    """All clusters, the request's own first, then in the order in which the assignment prefers them."""
    gaps: tuple[FeatureGap, ...]


def explain(table: TableContent, features: Features, load: Load) -> Explanation:
    """Return the table's decision for one request and why it falls out so."""
    decider = table.decider
    decision = policy_from_table(table).decide(features, load)
    mean, scale = decider.transform.mean, decider.transform.scale
    z = tuple(standardise(x, m, s) for x, m, s in zip(features, mean, scale, strict=True))
    centre = decider.clusters[decision.cluster].centre
    centre_tokens = features_in_tokens(centre, mean, scale)
    gaps = tuple(map(FeatureGap, FEATURE_NAMES, features, centre_tokens, z, centre))
    return Explanation(decision=decision, candidates=_ranking(decider, z), gaps=gaps)


def _ranking(decider: Bits, z: tuple[float, ...]) -> tuple[Candidate, ...]:
    """Return all clusters in order of preference, by the functions that the policy itself uses."""
    if isinstance(decider.clustering, KMeans):
        candidates = [_by_distance(index, cluster, z) for index, cluster in enumerate(decider.clusters)]
        return tuple(sorted(candidates, key=lambda candidate: candidate.distance))
    components = [_by_density(index, cluster, z) for index, cluster in enumerate(decider.clusters)]
    return tuple(candidate for _, candidate in sorted(components, key=lambda pair: pair[0]))


def _by_distance(index: int, cluster: Cluster, z: tuple[float, ...]) -> Candidate:
    _, squared_distance = nearest_centre(z[0], z[1], z[2], z[3], (cluster.centre,), 1)
    return Candidate(index, math.sqrt(squared_distance), None)


def _by_density(index: int, cluster: Cluster, z: tuple[float, ...]) -> tuple[float, Candidate]:
    weighing = component_whitener(cluster)
    _, log_density = likeliest_component(z[0], z[1], z[2], z[3], (weighing,), 1)
    squared_distance = max(2.0 * (weighing[14] - log_density), 0.0)
    return -log_density, Candidate(index, math.sqrt(squared_distance), log_density)


def explanation_json(table: RoutingTable, explanation: Explanation) -> dict[str, Any]:
    """Return the explanation for other programs to read."""
    decision = explanation.decision
    cluster = table.decider.clusters[decision.cluster]
    gain = measured_gain(cluster)
    candidates = [
        {**candidate._asdict(), "action": table.decider.clusters[candidate.cluster].action}
        for candidate in explanation.candidates
    ]
    return {
        "digest": table.digest,
        "action": decision.action.text,
        "cluster": decision.cluster,
        "reason": decision.reason,
        "distance": decision.distance,
        "runner_up": candidates[1] if len(candidates) > 1 else None,
        "rewards": cluster.rewards.model_dump(mode="json"),
        "gain": None if gain is None else gain._asdict(),
        "features": {gap.name: _gap_json(gap) for gap in explanation.gaps},
    }


def _gap_json(gap: FeatureGap) -> dict[str, float]:
    return {
        "tokens": gap.tokens,
        "centre_tokens": gap.centre_tokens,
        "difference_tokens": gap.tokens - gap.centre_tokens,
        "z": gap.z,
        "centre_z": gap.centre_z,
        "difference_z": gap.z - gap.centre_z,
    }
