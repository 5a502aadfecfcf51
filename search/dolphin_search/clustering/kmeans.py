"""k-means, of requests (as published) or of tokens."""

from __future__ import annotations

import numpy as np
from sklearn.cluster import KMeans as Estimator

from dolphin_router.contract import KMeans
from dolphin_search.clustering.clusters import Component
from dolphin_search.features import Matrix


def fit_kmeans(
    points: Matrix, *, count: int, weights: Matrix | None, initialisations: int, seed: int
) -> tuple[KMeans, tuple[Component, ...]]:
    """Return ``count`` clusters: of several initialisations (k-means++) that with the least inertia.

    Args:
        points: n × 4, standardised.
        count: clusters; no more than there are distinct points.
        weights: n weights, or None to count each request once.
        initialisations: how many to try.
        seed: of all of them.
    """
    estimator = Estimator(n_clusters=count, n_init=initialisations, random_state=seed)
    labels = estimator.fit(points, sample_weight=weights).labels_
    samples = np.bincount(labels, minlength=count)
    components = (
        Component(
            centre=(float(centre[0]), float(centre[1]), float(centre[2]), float(centre[3])),
            share=float(samples[k] / len(points)),
            samples=int(samples[k]),
        )
        for k, centre in enumerate(estimator.cluster_centers_)
    )
    return KMeans(kind="kmeans"), tuple(components)
