"""How two tables differ."""

from __future__ import annotations

import math
from typing import NamedTuple

from .contract import Bits, Clustering, KMeans, OutputModel, TableContent


class ClusterPair(NamedTuple):
    """Clusters of two tables that cover the same requests; none where a table has no counterpart."""

    a: int | None
    b: int | None
    distance: float | None
    """Between the centres, in ``ln(1 + tokens)``, where tables with different transforms compare."""


def match_clusters(a: Bits, b: Bits) -> list[ClusterPair]:
    """Pair clusters, the nearest two first; each cluster is in exactly one pair. In order of a, then of b."""
    centres_a, centres_b = _log_centres(a), _log_centres(b)
    by_distance = sorted(
        (math.dist(centre_a, centre_b), i, j)
        for i, centre_a in enumerate(centres_a)
        for j, centre_b in enumerate(centres_b)
    )
    partner_of_a: dict[int, ClusterPair] = {}
    taken_b: set[int] = set()
    for distance, i, j in by_distance:
        if i not in partner_of_a and j not in taken_b:
            partner_of_a[i] = ClusterPair(i, j, distance)
            taken_b.add(j)
    pairs = [partner_of_a.get(i, ClusterPair(i, None, None)) for i in range(len(centres_a))]
    return pairs + [ClusterPair(None, j, None) for j in range(len(centres_b)) if j not in taken_b]


def decide_alike(a: TableContent, b: TableContent) -> bool:
    """Tell whether two tables make the same decision for every request.

    They do when transform, centres, actions and output model are equal; the order of the clusters does not matter.
    Tables that differ in one of these are taken to differ, even where every action is the same.
    """
    return (
        a.decider.transform == b.decider.transform
        and _is_kmeans(a.decider.clustering) == _is_kmeans(b.decider.clustering)
        and _deciding_parts(a.decider) == _deciding_parts(b.decider)
        and _guess(a.output_model) == _guess(b.output_model)
    )


def _log_centres(bits: Bits) -> list[list[float]]:
    mean, scale = bits.transform.mean, bits.transform.scale
    return [[z * s + m for z, m, s in zip(cluster.centre, mean, scale, strict=True)] for cluster in bits.clusters]


def _is_kmeans(clustering: Clustering) -> bool:
    return isinstance(clustering, KMeans)


def _deciding_parts(bits: Bits) -> set[tuple[object, ...]]:
    return {(c.centre, c.action, c.weight, c.precision_cholesky) for c in bits.clusters}


def _guess(model: OutputModel | None) -> object:
    return model and model.model_dump(exclude={"accuracy", "samples"})
