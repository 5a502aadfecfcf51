"""From features to clusters: one file for each method, one function to call them by name."""

from __future__ import annotations

from dolphin_search.clustering.clusters import Clusters
from dolphin_search.clustering.fit import CLUSTERING_METHODS, ClusteringMethod, fit_clusters

__all__ = ["CLUSTERING_METHODS", "ClusteringMethod", "Clusters", "fit_clusters"]
