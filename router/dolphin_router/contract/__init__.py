"""The documents that cross a boundary. All parts of the project read and write them through this package."""

from __future__ import annotations

from .clustering import (
    ActionName,
    Cluster,
    Clustering,
    CovarianceKind,
    Four,
    GaussianMixture,
    KMeans,
    Reward,
    Rewards,
    Transform,
)
from .deciders import Bits, Decider
from .documents import load_table, read_table, save_table, write_table
from .errors import TableError
from .output_model import CLASS_NAMES, INPUT_NAMES, PROMPT_BUCKETS, OutputClass, OutputModel
from .provenance import Provenance, Score
from .slo import Slo, SloKind
from .split import Split
from .table import FORMAT, PolicyReference, RoutingTable, TableContent, content_digest, seal

__all__ = [
    "CLASS_NAMES",
    "FORMAT",
    "INPUT_NAMES",
    "PROMPT_BUCKETS",
    "ActionName",
    "Bits",
    "Cluster",
    "Clustering",
    "CovarianceKind",
    "Decider",
    "Four",
    "GaussianMixture",
    "KMeans",
    "OutputClass",
    "OutputModel",
    "PolicyReference",
    "Provenance",
    "Reward",
    "Rewards",
    "RoutingTable",
    "Score",
    "Slo",
    "SloKind",
    "Split",
    "TableContent",
    "TableError",
    "Transform",
    "content_digest",
    "load_table",
    "read_table",
    "save_table",
    "seal",
    "write_table",
]
