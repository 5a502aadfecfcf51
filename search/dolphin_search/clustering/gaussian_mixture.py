"""A Gaussian mixture with full covariances."""

from __future__ import annotations

import numpy as np
from sklearn.mixture import GaussianMixture as Estimator

from dolphin_router.contract import Four, GaussianMixture
from dolphin_search.clustering.clusters import Component
from dolphin_search.features import Matrix

# In squared standard deviations. Requests without cached tokens lie exactly on a line (effective = prompt), so a
# component would become
# arbitrarily thin without a floor.
LEAST_VARIANCE = 1e-3


def fit_gaussian_mixture(
    points: Matrix, *, count: int, initialisations: int, seed: int
) -> tuple[GaussianMixture, tuple[Component, ...]]:
    """Return ``count`` components: of several initialisations (k-means) that with the greatest likelihood.

    Args:
        points: n × 4, standardised.
        count: components; no more than there are distinct points.
        initialisations: how many to try.
        seed: of all of them.
    """
    estimator = Estimator(
        n_components=count,
        covariance_type="full",
        reg_covar=LEAST_VARIANCE,
        n_init=initialisations,
        max_iter=500,
        random_state=seed,
    )
    labels = estimator.fit(points).predict(points)
    samples = np.bincount(labels, minlength=count)
    components = (
        Component(
            centre=_four(estimator.means_[k]),
            share=float(samples[k] / len(points)),
            samples=int(samples[k]),
            weight=float(estimator.weights_[k]),
            precision_cholesky=(
                _four(np.triu(estimator.precisions_cholesky_[k])[0]),
                _four(np.triu(estimator.precisions_cholesky_[k])[1]),
                _four(np.triu(estimator.precisions_cholesky_[k])[2]),
                _four(np.triu(estimator.precisions_cholesky_[k])[3]),
            ),
        )
        for k in range(count)
    )
    return GaussianMixture(kind="gaussian-mixture", covariance="full"), tuple(components)


def _four(row: Matrix) -> Four:
    return float(row[0]), float(row[1]), float(row[2]), float(row[3])
