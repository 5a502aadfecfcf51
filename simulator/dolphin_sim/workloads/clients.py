"""What clients say about their requests beside the prompt: the inputs of an output-length model that sees no text.

They follow the length of the answer with noise, so that a model can learn something and never everything.
"""

from __future__ import annotations

import zlib

import numpy as np

from dolphin_sim.workloads.requests import Ints

# Round numbers that people put into max_tokens.
_ANSWER_LIMITS = np.array([16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192])


def answer_limits(random: np.random.Generator, output_tokens: Ints, *, stated_share: float) -> Ints:
    """int64[n]: max_tokens, 0 where the client states none.

    A stated limit is a round number with room over the answer: a factor exp(|x|) with x standard normal (our choice).
    """
    room = np.exp(np.abs(random.standard_normal(len(output_tokens))))
    index = np.searchsorted(_ANSWER_LIMITS, output_tokens * room)
    limits = np.maximum(_ANSWER_LIMITS[np.minimum(index, len(_ANSWER_LIMITS) - 1)], output_tokens)
    return np.where(random.random(len(output_tokens)) < stated_share, limits, 0)


def flags(random: np.random.Generator, count: int, *, share: float) -> Ints:
    """int64[count]: 1 in that share of the rows, else 0."""
    return (random.random(count) < share).astype(np.int64)


def system_hash(prompt_name: str) -> int:
    """The hash that stands for the system prompt of that name, the same in all windows and for all seeds."""
    return zlib.crc32(prompt_name.encode())
