"""The four numbers that describe a request to a routing policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

FEATURE_NAMES: Final = ("prompt_tokens", "prefill_effective_tokens", "decode_effective_tokens", "output_tokens")


class Features(NamedTuple):
    """What is known of a request when its path is chosen. All in tokens, none negative."""

    prompt_tokens: float
    prefill_effective_tokens: float
    """Prompt tokens that the candidate prefill worker would have to compute."""
    decode_effective_tokens: float
    """Prompt tokens that the candidate decode worker would have to compute."""
    output_tokens: float
    """Expected length of the answer: the representative length of its predicted class."""


def standardise(x: float, mean: float, scale: float) -> float:
    """Return ``(ln(1 + x) - mean) / scale``: a token count in the space in which clusters lie.

    Compiled by the simulator, so it keeps to plain arithmetic.
    """
    return (math.log1p(x) - mean) / scale


def effective_tokens(prompt_tokens: int, cached_tokens: int) -> int:
    """Return how many prompt tokens remain to be computed. An engine always computes at least the last one."""
    return max(min(prompt_tokens, 1), prompt_tokens - cached_tokens)


def tokens_from_standardised(z: float, mean: float, scale: float) -> float:
    """Return the token count at ``z``: the inverse of :func:`standardise`."""
    return math.expm1(z * scale + mean)


def features_in_tokens(point: Sequence[float], mean: Sequence[float], scale: Sequence[float]) -> Features:
    """Return the features at a standardised point, to show a cluster's centre in units that people know."""
    return Features(*(tokens_from_standardised(z, m, s) for z, m, s in zip(point, mean, scale, strict=True)))
