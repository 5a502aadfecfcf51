"""Which cluster a request belongs to.

Plain arithmetic on rows of numbers: the router runs these functions as they stand, over tuples; the simulator compiles
the very same functions, over arrays. The four coordinates are separate arguments because four local variables are much
faster than a sequence in both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def nearest_centre(
    z0: float, z1: float, z2: float, z3: float, centres: tuple[tuple[float, ...], ...], count: int
) -> tuple[int, float]:
    """Return the index of the nearest of the first ``count`` centres and the squared distance to it.

    The first of several equally near centres wins, as in scikit-learn's ``KMeans.predict``.
    """
    best = 0
    best_distance = float("inf")
    for k in range(count):
        centre = centres[k]
        d0 = z0 - centre[0]
        d1 = z1 - centre[1]
        d2 = z2 - centre[2]
        d3 = z3 - centre[3]
        distance = d0 * d0 + d1 * d1 + d2 * d2 + d3 * d3
        if distance < best_distance:
            best = k
            best_distance = distance
    return best, best_distance


def likeliest_component(
    z0: float,
    z1: float,
    z2: float,
    z3: float,
    whiteners: tuple[tuple[float, ...], ...],
    count: int,
) -> tuple[int, float]:
    """Return the index of the likeliest of the first ``count`` mixture components and its log density.

    Each row of ``whiteners`` has 15 numbers, made by :func:`whitener`: the ten entries of the upper triangle of the
    precision's Cholesky factor P, column by column; the mean times P (four); and the logarithm of weight times
    normaliser. With them the log density is ``constant - |zP - mean P|² / 2``.
    """
    best = 0
    best_density = float("-inf")
    for k in range(count):
        w = whiteners[k]
        y0 = z0 * w[0] - w[10]
        y1 = z0 * w[1] + z1 * w[2] - w[11]
        y2 = z0 * w[3] + z1 * w[4] + z2 * w[5] - w[12]
        y3 = z0 * w[6] + z1 * w[7] + z2 * w[8] + z3 * w[9] - w[13]
        density = w[14] - 0.5 * (y0 * y0 + y1 * y1 + y2 * y2 + y3 * y3)
        if density > best_density:
            best = k
            best_density = density
    return best, best_density


def whitener(
    centre: Sequence[float], precision_cholesky: Sequence[Sequence[float]], weight: float
) -> tuple[float, ...]:
    """Return the 15 numbers with which :func:`likeliest_component` weighs one mixture component.

    Args:
        centre: the component's mean, four coordinates.
        precision_cholesky: the upper triangular 4×4 matrix P for which ``P Pᵀ`` is the inverse covariance, rows first,
            as scikit-learn's ``GaussianMixture.precisions_cholesky_`` has it for ``covariance_type="full"``.
        weight: the component's share of the mixture, above 0.
    """
    upper = [precision_cholesky[row][column] for column in range(4) for row in range(column + 1)]
    mean = [sum(centre[row] * precision_cholesky[row][column] for row in range(column + 1)) for column in range(4)]
    log_determinant = sum(math.log(precision_cholesky[i][i]) for i in range(4))
    return (*upper, *mean, math.log(weight) + log_determinant - 2.0 * math.log(2.0 * math.pi))
