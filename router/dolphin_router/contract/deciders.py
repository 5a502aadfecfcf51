"""The policy classes that a table can hold."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from .clustering import Cluster, Clustering, KMeans, Transform
from .model import DocumentPart, inconsistency

SUM_TOLERANCE = 1e-3
"""How far shares and mixture weights may add up beside 1: they may have been rounded for 64 clusters."""

LARGEST_LOG_TOKENS = 50.0
"""A centre's ``ln(1 + x)`` is no further than this from 0: e^50 tokens is beyond every request, and no overflow."""


class Bits(DocumentPart):
    """One action for each cluster."""

    kind: Literal["bits"]
    transform: Transform
    clustering: Clustering
    clusters: Annotated[tuple[Cluster, ...], Field(min_length=1, max_length=64)]

    @model_validator(mode="after")
    def _clusters_fit_together(self) -> Bits:
        seen: dict[tuple[float, ...], int] = {}
        for index, cluster in enumerate(self.clusters):
            first = seen.setdefault(cluster.centre, index)
            if first != index:
                raise inconsistency(f"is the same as clusters[{first}].centre", "clusters", index, "centre")
            _check_in_token_range(cluster, index, self.transform)
            _check_mixture_parts(cluster, index, is_mixture=not isinstance(self.clustering, KMeans))
        _check_sum("share", [cluster.share for cluster in self.clusters])
        if not isinstance(self.clustering, KMeans):
            _check_sum("weight", [cluster.weight or 0.0 for cluster in self.clusters])
        return self


Decider = Bits
"""A union, discriminated by ``kind``, of the policy classes that this release reads. It has one member."""


def _check_in_token_range(cluster: Cluster, index: int, transform: Transform) -> None:
    for feature, (z, mean, scale) in enumerate(zip(cluster.centre, transform.mean, transform.scale, strict=True)):
        if abs(z * scale + mean) > LARGEST_LOG_TOKENS:
            raise inconsistency(f"is {z}, which is beyond any token count", "clusters", index, "centre", feature)


def _check_mixture_parts(cluster: Cluster, index: int, *, is_mixture: bool) -> None:
    for name in ("weight", "precision_cholesky"):
        present = getattr(cluster, name) is not None
        if present and not is_mixture:
            raise inconsistency("must be null, as the clustering is k-means", "clusters", index, name)
        if is_mixture and not present:
            raise inconsistency("is null, but a Gaussian mixture needs it", "clusters", index, name)
    for row, entries in enumerate(cluster.precision_cholesky or ()):
        for column, entry in enumerate(entries):
            place = ("clusters", index, "precision_cholesky", row, column)
            if column < row and entry != 0.0:
                raise inconsistency(f"is {entry}, but below the diagonal must be 0", *place)
            if column == row and entry <= 0.0:
                raise inconsistency(f"is {entry}, but the diagonal must be above 0", *place)


def _check_sum(name: str, values: list[float]) -> None:
    if abs(sum(values) - 1.0) > SUM_TOLERANCE:
        raise inconsistency(f"have {name}s that add up to {sum(values):.6g} and not to 1", "clusters")
