"""Request streams: seeded generators and recorded traces behind one interface."""

from dolphin_sim.workloads.arrivals import TooManyRequests, check_arrivals
from dolphin_sim.workloads.registry import WORKLOAD_NAMES, workload_by_name
from dolphin_sim.workloads.requests import Requests
from dolphin_sim.workloads.statistics import Description, describe, reuse_with_endless_cache
from dolphin_sim.workloads.trace_rows import TraceError
from dolphin_sim.workloads.trace_workload import TraceWorkload
from dolphin_sim.workloads.traces import Trace, load_trace
from dolphin_sim.workloads.workload import Part, Workload

__all__ = [
    "WORKLOAD_NAMES",
    "Description",
    "Part",
    "Requests",
    "TooManyRequests",
    "Trace",
    "TraceError",
    "TraceWorkload",
    "Workload",
    "check_arrivals",
    "describe",
    "load_trace",
    "reuse_with_endless_cache",
    "workload_by_name",
]
