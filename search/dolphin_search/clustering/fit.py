"""Standardise, then cluster."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from dolphin_router.contract import Clustering, Transform
from dolphin_search.clustering.clusters import Clusters, Component
from dolphin_search.clustering.gaussian_mixture import fit_gaussian_mixture
from dolphin_search.clustering.kmeans import fit_kmeans
from dolphin_search.features import Matrix

ClusteringMethod = Literal["kmeans", "weighted-kmeans", "gaussian-mixture"]
CLUSTERING_METHODS: tuple[ClusteringMethod, ...] = get_args(ClusteringMethod)
MOST_CLUSTERS = 64


def fit_clusters(
    features: Matrix, *, count: int, method: ClusteringMethod = "kmeans", initialisations: int = 10, seed: int = 0
) -> Clusters:
    """Cluster requests by their features.

    The transform is the published one: ``ln(1 + x)``, then mean 0 and standard deviation 1. Clusters come in rising
    order of their prompt length, so that equal clusters have equal numbers.

    Args:
        features: n × 4, in tokens.
        count: clusters wanted, 1 to 64. There are fewer when there are fewer distinct points.
        method: ``kmeans``; ``weighted-kmeans``, each request weighted by its prompt tokens; ``gaussian-mixture``.
        initialisations: tried; the best by inertia or likelihood is kept.
        seed: of the initialisations.

    Raises:
        ValueError: no requests, or a count out of range.
    """
    if not 1 <= count <= MOST_CLUSTERS:
        raise ValueError(f"{count} clusters: give a number from 1 to {MOST_CLUSTERS}")
    if len(features) == 0:
        raise ValueError("there are no requests to cluster: record a longer history")
    logarithms = np.log1p(features)
    mean = logarithms.mean(axis=0)
    scale = logarithms.std(axis=0)
    # A feature that never varies tells nothing; any scale keeps it at 0.
    scale = np.where(scale > 1e-9, scale, 1.0)
    points = (logarithms - mean) / scale
    count = min(count, len(np.unique(points, axis=0)))
    clustering: Clustering
    components: tuple[Component, ...]
    if method == "gaussian-mixture":
        clustering, components = fit_gaussian_mixture(points, count=count, initialisations=initialisations, seed=seed)
    else:
        weights = features[:, 0] if method == "weighted-kmeans" else None
        clustering, components = fit_kmeans(
            points, count=count, weights=weights, initialisations=initialisations, seed=seed
        )
    transform = Transform(
        mean=(float(mean[0]), float(mean[1]), float(mean[2]), float(mean[3])),
        scale=(float(scale[0]), float(scale[1]), float(scale[2]), float(scale[3])),
    )
    return Clusters(transform, clustering, tuple(sorted(components, key=lambda component: component.centre)))
