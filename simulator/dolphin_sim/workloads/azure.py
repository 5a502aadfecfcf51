"""Traces in the format of Azure's LLM inference traces: CSV with times and lengths, nothing about shared prefixes.

Format and traces: github.com/Azure/AzurePublicDataset, CC-BY 4.0.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dolphin_sim.workloads.requests import Requests, offsets_of

HEADER = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BLOCK_TOKENS = 64


class AzureRow(NamedTuple):
    """One request."""

    timestamp: datetime
    context_tokens: int
    generated_tokens: int


def is_azure_header(text: str) -> bool:
    """Whether the line names exactly the columns of this format."""
    return tuple(name.strip() for name in text.split(",")) == HEADER


def parse_azure(text: str) -> AzureRow:
    """One line after the header.

    Raises:
        ValueError: the field and the reason.
    """
    values = text.split(",")
    if len(values) != len(HEADER):
        raise ValueError(f"{len(HEADER)} values are expected ({', '.join(HEADER)}), got {len(values)}")
    try:
        timestamp = datetime.fromisoformat(values[0].strip())
    except ValueError:
        raise ValueError(f"TIMESTAMP: {values[0][:40]!r} is not a date and time") from None
    # With and without a zone do not compare; both are read as the same clock.
    return AzureRow(timestamp.replace(tzinfo=None), _tokens(HEADER[1], values[1]), _tokens(HEADER[2], values[2]))


def azure_requests(path: Path, rows: list[tuple[int, AzureRow]]) -> Requests:
    """Requests of the numbered lines, sorted by time; every block is new, since nothing is known of shared prefixes."""
    ordered = sorted((row for _, row in rows), key=lambda row: row.timestamp)
    prompt_tokens = np.array([row.context_tokens for row in ordered], np.int64)
    offsets = offsets_of(prompt_tokens // BLOCK_TOKENS)
    return Requests.without_inputs(
        arrival_s=np.array([(row.timestamp - ordered[0].timestamp).total_seconds() for row in ordered], np.float64),
        prompt_tokens=prompt_tokens,
        output_tokens=np.array([row.generated_tokens for row in ordered], np.int64),
        block_offsets=offsets,
        block_ids=np.arange(offsets[-1]),
        block_tokens=BLOCK_TOKENS,
        component_name=path.stem,
    )


def _tokens(name: str, text: str) -> int:
    # int() also takes signs, underscores and other scripts' digits; a count in these files has none of them.
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 12) or int(digits) < 1:
        raise ValueError(f"{name}: {text[:40]!r} is not a positive whole number of tokens")
    return int(digits)
