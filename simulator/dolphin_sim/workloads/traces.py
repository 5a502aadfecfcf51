"""Loads a trace file of any known format."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import NamedTuple

from dolphin_sim.workloads.azure import HEADER, azure_requests, is_azure_header, parse_azure
from dolphin_sim.workloads.mooncake import mooncake_requests, parse_mooncake
from dolphin_sim.workloads.recorded import is_recorded_header, parse_recorded, recorded_requests
from dolphin_sim.workloads.requests import Requests
from dolphin_sim.workloads.trace_rows import TraceError, parse_rows, read_lines


class Trace(NamedTuple):
    """The requests of a file from time 0 on, and how many truncated lines (0 or 1) were left out."""

    requests: Requests
    dropped_lines: int


def load_trace(path: str | Path, *, truncated_ok: bool = False) -> Trace:
    """Read a Mooncake (JSON lines) or Azure (CSV) trace, or what routers recorded (JSON lines); the first line tells
    which.

    Args:
        path: the file.
        truncated_ok: leave out a last line that was cut off, and report it in ``dropped_lines``.

    Raises:
        TraceError: file, line and reason, for the first line that does not parse.
        OSError: the file cannot be read.
    """
    path = Path(path)
    lines = read_lines(path)
    first = next(lines, None)
    if first is None:
        raise TraceError(path, 0, "the file is empty")
    if is_azure_header(first.text):
        azure_rows, dropped = parse_rows(path, lines, parse_azure, truncated_ok=truncated_ok)
        requests = azure_requests(path, azure_rows)
    elif is_recorded_header(first.text):
        recorded, dropped = parse_rows(path, chain([first], lines), parse_recorded, truncated_ok=truncated_ok)
        requests = recorded_requests(path, recorded)
    elif first.text.startswith("{"):
        rows, dropped = parse_rows(path, chain([first], lines), parse_mooncake, truncated_ok=truncated_ok)
        requests = mooncake_requests(path, rows)
    else:
        known = f"a JSON object (Mooncake trace or recorded requests) or the header {','.join(HEADER)} (Azure trace)"
        raise TraceError(path, first.number, f"unknown format: {known} is expected, got {first.text[:40]!r}")
    if len(requests) == 0:
        raise TraceError(path, 0, "the file holds no requests")
    return Trace(requests.check(), dropped)
