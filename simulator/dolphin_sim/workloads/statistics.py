"""Figures that describe a set of requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from dolphin_sim.workloads.requests import Ints, Mask, Requests


@dataclass(frozen=True, kw_only=True)
class LengthFigures:
    """Mean and percentiles of token counts."""

    mean: float
    p10: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, tokens: Ints) -> Self:
        """The figures of int64[n]; n = 0 gives zeros."""
        if len(tokens) == 0:
            return cls(mean=0.0, p10=0.0, p50=0.0, p90=0.0, p99=0.0)
        p10, p50, p90, p99 = np.percentile(tokens, [10, 50, 90, 99]).tolist()
        return cls(mean=float(tokens.mean()), p10=p10, p50=p50, p90=p90, p99=p99)


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a person wants to know about a set of requests first."""

    requests: int
    span_s: float
    """From the first to the last arrival."""
    rate_per_s: float
    """Mean over the span; 0 where fewer than two times are known."""
    prompt_tokens: LengthFigures
    output_tokens: LengthFigures
    reuse: float
    """Share of prompt tokens in blocks that an earlier request had, see ``reuse_with_endless_cache``."""
    component_shares: dict[str, float]
    """Share of the requests."""


def describe(requests: Requests) -> Description:
    """The figures of these requests; all zero where there are none."""
    count = len(requests)
    span_s = float(requests.arrival_s[-1] - requests.arrival_s[0]) if count else 0.0
    members = np.bincount(requests.component, minlength=len(requests.component_names))
    return Description(
        requests=count,
        span_s=span_s,
        rate_per_s=(count - 1) / span_s if span_s > 0 else 0.0,
        prompt_tokens=LengthFigures.of(requests.prompt_tokens),
        output_tokens=LengthFigures.of(requests.output_tokens),
        reuse=reuse_with_endless_cache(requests),
        component_shares={
            name: float(members[index]) / max(count, 1) for index, name in enumerate(requests.component_names)
        },
    )


def reuse_with_endless_cache(requests: Requests, *, counted: Mask | None = None) -> float:
    """Share of the prompt tokens whose block an earlier request had: what one cache that forgets nothing would save.

    Args:
        requests: in the order in which the cache sees them.
        counted: bool[n], the requests that the share is taken over; the others only fill the cache. None: all.
    """
    counted = np.ones(len(requests), np.bool_) if counted is None else counted
    cached = cached_tokens_with_endless_cache(requests)
    return float(cached[counted].sum()) / max(1, int(requests.prompt_tokens[counted].sum()))


def cached_tokens_with_endless_cache(requests: Requests) -> Ints:
    """int64[n]: the tokens at the start of each prompt that an earlier request had, in full blocks."""
    # Ids are chained, so a block that is not the first of its id follows only such blocks; none is twice in a prompt.
    seen = np.ones(len(requests.block_ids), np.int64)
    seen[np.unique(requests.block_ids, return_index=True)[1]] = 0
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(seen)])
    blocks: Ints = before[requests.block_offsets[1:]] - before[requests.block_offsets[:-1]]
    return blocks * requests.block_tokens
