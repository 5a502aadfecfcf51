"""Which prefill and which decode worker a request would go to: prefix-aware and load-aware.

Plain arithmetic on sequences, compiled by the simulator as it stands. Costs are in tokens; the first of equal workers
wins, so that equal inputs give equal choices on every replica.
"""

from __future__ import annotations

from collections.abc import Sequence


def choose_prefill_worker(
    prompt_tokens: float, cached_tokens: Sequence[float], queue_tokens: Sequence[float], count: int
) -> int:
    """Return the prefill worker with the least work before this request's first token.

    Args:
        prompt_tokens: length of the prompt.
        cached_tokens: of this prompt's leading tokens, how many each worker holds.
        queue_tokens: uncached prompt tokens that wait or are being computed on each worker.
        count: number of workers, at least 1.
    """
    best = 0
    best_cost = float("inf")
    for w in range(count):
        cost = queue_tokens[w] + prompt_tokens - cached_tokens[w]
        if cost < best_cost:
            best = w
            best_cost = cost
    return best


def choose_decode_worker(
    prompt_tokens: float,
    cached_tokens: Sequence[float],
    queue_tokens: Sequence[float],
    context_tokens: Sequence[float],
    count: int,
) -> int:
    """Return the decode worker with the least memory and prefill work, this request's uncached part included.

    Args:
        prompt_tokens: length of the prompt.
        cached_tokens: of this prompt's leading tokens, how many each worker holds.
        queue_tokens: uncached prompt tokens of local prefills that wait or are being computed on each worker.
        context_tokens: context length, summed over the requests each worker decodes or is promised.
        count: number of workers, at least 1.
    """
    best = 0
    best_cost = float("inf")
    for w in range(count):
        cost = context_tokens[w] + queue_tokens[w] + prompt_tokens - cached_tokens[w]
        if cost < best_cost:
            best = w
            best_cost = cost
    return best
