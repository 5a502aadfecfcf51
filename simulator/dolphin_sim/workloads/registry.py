"""Finds a workload by name or by the path of a trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from dolphin_sim.workloads.agent import agent_workload
from dolphin_sim.workloads.arrivals import ArrivalKind
from dolphin_sim.workloads.arxiv import arxiv_workload
from dolphin_sim.workloads.chat import chat_workload
from dolphin_sim.workloads.humaneval import humaneval_workload
from dolphin_sim.workloads.hybrid import hybrid_workload
from dolphin_sim.workloads.leval import leval_workload
from dolphin_sim.workloads.trace_workload import TraceWorkload
from dolphin_sim.workloads.traces import load_trace
from dolphin_sim.workloads.workload import Workload

_GENERATORS: dict[str, Callable[[ArrivalKind], Workload]] = {
    "agent": lambda arrival: agent_workload(arrival=arrival),
    "arxiv": lambda arrival: arxiv_workload(arrival=arrival),
    "chat": lambda arrival: chat_workload(arrival=arrival),
    "humaneval": lambda arrival: humaneval_workload(arrival=arrival),
    "hybrid": lambda arrival: hybrid_workload(arrival=arrival),
    "leval": lambda arrival: leval_workload(arrival=arrival),
}

WORKLOAD_NAMES = tuple(_GENERATORS)


def workload_by_name(
    name_or_path: str | Path, *, arrival: ArrivalKind | Literal["trace"] | None = None, truncated_ok: bool = False
) -> Workload:
    """The generator of that name, else the trace in that file.

    Args:
        name_or_path: one of WORKLOAD_NAMES, or a path to a Mooncake or Azure trace or to what routers recorded.
        arrival: "poisson", "bursty" or, for traces only, "trace" (as recorded). None: as recorded for traces, "poisson"
            for generators; the conversations of "chat" and "agent" begin by it, and their later turns follow them.
        truncated_ok: for traces, leave out a last line that was cut off.

    Raises:
        ValueError: no such name or file, a trace that does not parse, or an arrival that does not fit.
        OSError: the file exists and cannot be read.
    """
    if arrival not in (None, "poisson", "bursty", "trace"):
        raise ValueError(f"arrival: {arrival!r} is not 'poisson', 'bursty' or 'trace'")
    generator = _GENERATORS.get(str(name_or_path))
    if generator is not None:
        if arrival == "trace":
            raise ValueError(
                f"arrival: 'trace' needs a trace, and {name_or_path} is a generator; give 'poisson' or 'bursty'"
            )
        return generator(arrival or "poisson")
    path = Path(name_or_path)
    if not path.is_file():
        raise ValueError(
            f"workload: {str(name_or_path)!r} is neither a name nor a file; names are {', '.join(WORKLOAD_NAMES)},"
            " and the path of a Mooncake or Azure trace, or of recorded requests, is accepted, too"
        )
    trace = load_trace(path, truncated_ok=truncated_ok)
    return TraceWorkload(name=path.stem, requests=trace.requests, arrival=arrival or "trace")
