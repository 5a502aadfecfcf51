"""The documents that cross a boundary. All parts of the project read and write them through this package."""

from __future__ import annotations

from .checkpoint import CHECKPOINT_FORMAT, Checkpoint, CheckpointRound, most_rounds
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
from .documents import (
    load_document,
    load_table,
    read_document,
    read_table,
    save_document,
    save_table,
    write_document,
    write_table,
)
from .errors import DocumentError
from .output_model import CLASS_NAMES, INPUT_NAMES, PROMPT_BUCKETS, ClassName, OutputClass, OutputModel
from .provenance import Provenance, Score
from .recorded_request import RECORDED_BLOCK_DIGITS, RECORDED_FORMAT, RecordedHeader, RecordedRequest
from .router_config import (
    ROUTER_CONFIG_FORMAT,
    EngineName,
    Limits,
    RouterConfig,
    Timeouts,
    WorkerAddress,
    Workers,
)
from .slo import Slo, SloKind
from .split import Split
from .table import FORMAT, PolicyReference, RoutingTable, TableContent, content_digest, seal

__all__ = [
    "CHECKPOINT_FORMAT",
    "CLASS_NAMES",
    "FORMAT",
    "INPUT_NAMES",
    "PROMPT_BUCKETS",
    "RECORDED_BLOCK_DIGITS",
    "RECORDED_FORMAT",
    "ROUTER_CONFIG_FORMAT",
    "ActionName",
    "Bits",
    "Checkpoint",
    "CheckpointRound",
    "ClassName",
    "Cluster",
    "Clustering",
    "CovarianceKind",
    "Decider",
    "DocumentError",
    "EngineName",
    "Four",
    "GaussianMixture",
    "KMeans",
    "Limits",
    "OutputClass",
    "OutputModel",
    "PolicyReference",
    "Provenance",
    "RecordedHeader",
    "RecordedRequest",
    "Reward",
    "Rewards",
    "RouterConfig",
    "RoutingTable",
    "Score",
    "Slo",
    "SloKind",
    "Split",
    "TableContent",
    "Timeouts",
    "Transform",
    "WorkerAddress",
    "Workers",
    "content_digest",
    "load_document",
    "load_table",
    "most_rounds",
    "read_document",
    "read_table",
    "save_document",
    "save_table",
    "seal",
    "write_document",
    "write_table",
]
