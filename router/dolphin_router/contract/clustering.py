"""The clusters of a table: how a request finds its own, and what was learned in it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .model import Count, DocumentPart, Fraction, NonNegative, Positive

Four = tuple[float, float, float, float]
ActionName = Literal["local", "remote"]
CovarianceKind = Literal["full", "tied", "diag", "spherical"]


class Transform(DocumentPart):
    """Takes token counts to the space in which clusters lie: ``z = (ln(1 + x) - mean) / scale``, feature by feature."""

    mean: Four
    scale: tuple[Positive, Positive, Positive, Positive]


class KMeans(DocumentPart):
    """A request belongs to the nearest centre."""

    kind: Literal["kmeans"]


class GaussianMixture(DocumentPart):
    """A request belongs to the likeliest component. ``covariance`` tells how the components were fitted."""

    kind: Literal["gaussian-mixture"]
    covariance: CovarianceKind


Clustering = Annotated[KMeans | GaussianMixture, Field(discriminator="kind")]


class Reward(DocumentPart):
    """What was measured with one action in one cluster."""

    mean: float
    standard_error: NonNegative | None
    """Null where there were too few periods to estimate it."""
    periods: Annotated[Count, Field(ge=1)]


class Rewards(DocumentPart):
    """The measured reward of each action; null where it was never tried."""

    local: Reward | None
    remote: Reward | None


class Cluster(DocumentPart):
    """One cluster: where it lies, its action and what that rests on."""

    centre: Four
    """In transformed coordinates."""
    action: ActionName
    share: Fraction
    """Of the requests that the clusters were made from."""
    samples: Count
    """Requests that the cluster was made from."""
    rewards: Rewards
    weight: Annotated[Fraction, Field(gt=0)] | None
    """Of the component in the mixture; null for k-means."""
    precision_cholesky: tuple[Four, Four, Four, Four] | None
    """Upper triangular P, rows first, with ``P Pᵀ`` the component's inverse covariance; null for k-means.

    Written out in full for every kind of covariance.
    """
