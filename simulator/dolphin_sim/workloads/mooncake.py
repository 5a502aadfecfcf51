"""Traces in the format of Mooncake (FAST'25): JSON lines with lengths and the hashes of 512-token blocks.

Format and traces: github.com/kvcache-ai/Mooncake, FAST25-release/traces, Apache-2.0.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dolphin_sim.workloads.requests import Floats, Requests, offsets_of
from dolphin_sim.workloads.trace_rows import TraceError

BLOCK_TOKENS = 512

# The times of the conversation trace lie on a grid of 3 s with ten requests each. With as many rows for each time as
# this, the clock is taken to be that coarse; with fewer, equal times are chance and stay.
GRID_ROWS = 2.0


class MooncakeRow(NamedTuple):
    """One request; hash_ids has one id for each block, the last one perhaps not full."""

    timestamp_ms: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def parse_mooncake(text: str) -> MooncakeRow:
    """One line.

    Raises:
        ValueError: the field and the reason.
    """
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError("not JSON of one request: nested too deeply") from None
    if not isinstance(row, dict):
        raise ValueError(f"a JSON object is expected, got {text[:40]!r}")
    for name in ("timestamp", "input_length", "output_length", "hash_ids"):
        if name not in row:
            raise ValueError(f"{name}: missing")
    timestamp_ms = row["timestamp"]
    if isinstance(timestamp_ms, bool) or not isinstance(timestamp_ms, int | float) or not 0 <= timestamp_ms < 1e15:
        raise ValueError(f"timestamp: {_shown(timestamp_ms)} is not a time in milliseconds, 0 or later")
    for name in ("input_length", "output_length"):
        if not _is_whole(row[name]) or not 1 <= row[name] < 2**40:
            raise ValueError(f"{name}: {_shown(row[name])} is not a positive whole number of tokens")
    hash_ids, blocks = row["hash_ids"], math.ceil(row["input_length"] / BLOCK_TOKENS)
    if not isinstance(hash_ids, list) or not all(_is_whole(block) for block in hash_ids):
        raise ValueError(f"hash_ids: {_shown(hash_ids)} is not a list of whole numbers")
    if len(hash_ids) != blocks:
        length = row["input_length"]
        raise ValueError(f"hash_ids: {len(hash_ids)} ids, but {length} tokens make {blocks} blocks of {BLOCK_TOKENS}")
    return MooncakeRow(float(timestamp_ms), row["input_length"], row["output_length"], hash_ids)


def mooncake_requests(path: Path, rows: list[tuple[int, MooncakeRow]]) -> Requests:
    """Requests of the numbered lines, sorted by time; only full blocks, with dense ids.

    Raises:
        TraceError: a block id that follows different ids in two lines, which breaks the chain.
    """
    rows = sorted(rows, key=lambda numbered: numbered[1].timestamp_ms)
    dense: dict[int, int] = {}
    previous_of: list[int] = []
    blocks: list[int] = []
    for line, row in rows:
        previous = -1
        for block in row.hash_ids[: row.input_length // BLOCK_TOKENS]:
            number = dense.setdefault(block, len(dense))
            if number == len(previous_of):
                previous_of.append(previous)
            elif previous_of[number] != previous:
                raise TraceError(path, line, f"hash_ids: {block} follows another prefix than in a row before it")
            blocks.append(number)
            previous = number

    prompt_tokens = np.array([row.input_length for _, row in rows], np.int64)
    times_s = np.array([row.timestamp_ms for _, row in rows], np.float64) / 1000
    return Requests.without_inputs(
        arrival_s=spread_over_grid(times_s - times_s.min(initial=np.inf)),
        prompt_tokens=prompt_tokens,
        output_tokens=np.array([row.output_length for _, row in rows], np.int64),
        block_offsets=offsets_of(prompt_tokens // BLOCK_TOKENS),
        block_ids=np.array(blocks, np.int64),
        block_tokens=BLOCK_TOKENS,
        component_name=path.stem,
    )


def spread_over_grid(times_s: Floats) -> Floats:
    """Sorted times, where many are equal spread evenly until the next time, or over the usual step where that is late.

    A clock that ticks every 3 s gives bursts of ten requests that never were. Times that are mostly different are
    returned as they are.
    """
    ticks, first, counts = np.unique(times_s, return_index=True, return_counts=True)
    if len(ticks) < 2 or len(times_s) < GRID_ROWS * len(ticks):
        return times_s
    steps_s = np.diff(ticks)
    usual_s = float(np.median(steps_s))
    room_s = np.minimum(np.append(steps_s, usual_s), usual_s)
    place = np.arange(len(times_s)) - np.repeat(first, counts)
    spread_s: Floats = times_s + place / np.repeat(counts, counts) * np.repeat(room_s, counts)
    return spread_s


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
