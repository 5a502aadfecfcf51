"""NVIDIA Dynamo's conditional disaggregation and its router's choice of workers.

Source: ai-dynamo/dynamo 1.6, ``lib/kv-router/src/conditional_disagg.rs`` and ``scheduling/selector.rs``. A device
cache only, no busy gate on decode workers, temperature 0: Dynamo's defaults.
"""

from __future__ import annotations

from dolphin_sim.compiled import compiled
from dolphin_sim.engine.state import Floats


@compiled
def is_bypassed_by_length(
    prompt_tokens: int, decode_cached_tokens: int, length_threshold: float, ratio_threshold: float
) -> bool:
    """Return True when ``isl_bounding`` keeps the request local: its uncached part is short *and* a small share of
    it."""
    effective_tokens = max(0, prompt_tokens - decode_cached_tokens)
    return effective_tokens < length_threshold and effective_tokens / max(prompt_tokens, 1) < ratio_threshold


@compiled
def is_prefill_busy(dispatched_tokens: int, busy_threshold: float, step_tokens: int) -> bool:
    """Return True when the prefill worker has more uncached tokens in flight than ``busy_threshold`` full steps."""
    return dispatched_tokens > busy_threshold * step_tokens


@compiled
def choose_cheapest(
    load_tokens: Floats, prompt_tokens: int, credit_tokens: Floats, block_tokens: int, count: int, uniform: float
) -> int:
    """Return the worker of lowest cost: blocks of load and prompt, less blocks of credit; ties are broken at random.

    Both hops have this form: the prefill hop with the backlog as load and the cached prefix as credit; the decode hop
    with the blocks of live requests as load, and the prefix as credit only while conditional disaggregation is on.
    """
    lowest = float("inf")
    ties = 0
    for w in range(count):
        cost = max(0.0, (load_tokens[w] + prompt_tokens) / block_tokens - credit_tokens[w] // block_tokens)
        if cost < lowest:
            lowest = cost
            ties = 1
        elif cost == lowest:
            ties += 1
    chosen = int(uniform * ties)
    for w in range(count):
        cost = max(0.0, (load_tokens[w] + prompt_tokens) / block_tokens - credit_tokens[w] // block_tokens)
        if cost == lowest:
            if chosen == 0:
                return w
            chosen -= 1
    return 0
