"""Requests made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from dolphin_sim.workloads import Requests


def _prompts(
    prompt_tokens: Sequence[int], arrival_s: Sequence[float], *, output_tokens: Sequence[int] | None = None
) -> Requests:
    count = len(prompt_tokens)
    blocks = np.array(prompt_tokens, dtype=np.int64) // 64
    return Requests.without_inputs(
        arrival_s=np.array(arrival_s, dtype=np.float64),
        prompt_tokens=np.array(prompt_tokens, dtype=np.int64),
        output_tokens=np.array(output_tokens or [1] * count, dtype=np.int64),
        block_offsets=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(blocks)]),
        block_ids=np.arange(blocks.sum()),
        block_tokens=64,
        component_name="by hand",
    ).check()


@pytest.fixture(scope="session")
def prompts() -> Callable[..., Requests]:
    """A function that makes prompts that share nothing, in blocks of 64 tokens, from their lengths and arrivals;
    answers have one token unless ``output_tokens=`` are given."""
    return _prompts
