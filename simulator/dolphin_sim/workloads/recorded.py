"""Requests that routers recorded, in the format of ``dolphin_router.contract.recorded_request``.

Files of several routers of one policy may be put one behind the other.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from dolphin_router.contract.errors import refusal
from dolphin_router.contract.output_model import PROMPT_BUCKETS
from dolphin_router.contract.recorded_request import (
    RECORDED_BLOCK_DIGITS,
    RECORDED_FORMAT,
    RecordedHeader,
    RecordedRequest,
)
from dolphin_sim.workloads.requests import Ints, Requests, offsets_of
from dolphin_sim.workloads.trace_rows import TraceError

RecordedLine = RecordedHeader | RecordedRequest

LONGEST_PROMPT_TOKENS = 2**24

# Where no row has a prompt of any length.
_USUAL_TOKENS_PER_BYTE = 0.25
_FORMAT = re.compile(r'\{\s*"format"\s*:\s*"([^"]*)"')


def is_recorded_header(text: str) -> bool:
    """Whether the line begins recorded requests, in this version of the format or another."""
    found = _FORMAT.match(text)
    return found is not None and found[1].startswith(RECORDED_FORMAT.rpartition("/")[0])


def parse_recorded(text: str) -> RecordedLine:
    """One line.

    Raises:
        ValueError: the field and the reason.
    """
    model = RecordedHeader if is_recorded_header(text) else RecordedRequest
    try:
        line: RecordedLine = model.model_validate_json(text)
    except ValidationError as error:
        refused = refusal(error, source="line")
        raise ValueError(f"{refused.field} {refused.problem}".strip()) from None
    if isinstance(line, RecordedRequest) and line.prompt_tokens > LONGEST_PROMPT_TOKENS:
        raise ValueError(f"prompt_tokens {line.prompt_tokens} is more than any prompt has ({LONGEST_PROMPT_TOKENS})")
    return line


def recorded_requests(path: Path, lines: list[tuple[int, RecordedLine]]) -> Requests:
    """Requests of the numbered lines, sorted by time; the models they were for are their components.

    Requests of which no answer was seen are left out: how much work they were cannot be told. A block stands for as
    many tokens as its bytes had on average over all rows. Of blocks that a row does not name nothing is known, so they
    are new ones.

    Raises:
        TraceError: files of different policies or with different blocks, or a block that follows different blocks in
            two lines.
    """
    block_bytes = _agreed_block_bytes(path, lines)
    rows = [
        (number, line)
        for number, line in lines
        if isinstance(line, RecordedRequest) and line.prompt_tokens and line.output_tokens
    ]
    rows.sort(key=lambda numbered: numbered[1].arrived_unix_s)
    prompt_tokens = np.array([row.prompt_tokens for _, row in rows], np.int64)
    prompt_bytes = sum(row.prompt_bytes for _, row in rows)
    tokens_per_byte = int(prompt_tokens.sum()) / prompt_bytes if prompt_bytes else _USUAL_TOKENS_PER_BYTE
    block_tokens = max(1, round(block_bytes * tokens_per_byte))
    times_s = np.array([row.arrived_unix_s for _, row in rows], np.float64)
    models = tuple(dict.fromkeys(row.model or path.stem for _, row in rows))
    return Requests(
        arrival_s=times_s - times_s.min(initial=np.inf),
        prompt_tokens=prompt_tokens,
        output_tokens=_column(rows, "output_tokens"),
        block_offsets=offsets_of(prompt_tokens // block_tokens),
        block_ids=_block_ids(path, rows, block_tokens),
        block_tokens=block_tokens,
        component=np.array([models.index(row.model or path.stem) for _, row in rows], np.int64),
        component_names=models,
        max_tokens=_column(rows, "max_tokens"),
        turns=_column(rows, "turns"),
        tools=_column(rows, "has_tools"),
        json_format=_column(rows, "json_response"),
        # Any number that falls into the same bucket and is not 0, which stands for no system prompt.
        system_hash=np.array(
            [0 if row.system_prompt_bucket is None else PROMPT_BUCKETS + row.system_prompt_bucket for _, row in rows],
            np.int64,
        ),
    )


def _agreed_block_bytes(path: Path, lines: list[tuple[int, RecordedLine]]) -> int:
    headers = [(number, line) for number, line in lines if isinstance(line, RecordedHeader)]
    if not headers:
        raise TraceError(path, 0, "there is no header; export the rows from the router again")
    _, first = headers[0]
    for number, header in headers:
        if header.block_bytes != first.block_bytes:
            reason = f"block_bytes is {header.block_bytes}, but {first.block_bytes} in the header before"
            raise TraceError(path, number, f"{reason}; give files of one release of the router")
        if header.secret_id != first.secret_id:
            reason = "secret_id differs from the header before, so blocks cannot be compared"
            raise TraceError(path, number, f"{reason}; give files of one policy's routers")
    return first.block_bytes


def _block_ids(path: Path, rows: list[tuple[int, RecordedRequest]], block_tokens: int) -> Ints:
    dense: dict[str, int] = {}
    previous_of: list[int] = []
    blocks: list[int] = []
    for line, row in rows:
        previous = -1
        for place in range(row.prompt_tokens // block_tokens):
            digest = row.blocks[place * RECORDED_BLOCK_DIGITS : (place + 1) * RECORDED_BLOCK_DIGITS]
            number = dense.setdefault(digest, len(previous_of)) if digest else len(previous_of)
            if number == len(previous_of):
                previous_of.append(previous)
            elif previous_of[number] != previous:
                raise TraceError(path, line, f"blocks: {digest} follows another prefix than in a row before it")
            blocks.append(number)
            previous = number
    return np.array(blocks, np.int64)


def _column(rows: list[tuple[int, RecordedRequest]], name: str) -> Ints:
    return np.array([int(getattr(row, name) or 0) for _, row in rows], np.int64)
