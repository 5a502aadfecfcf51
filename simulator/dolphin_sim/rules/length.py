"""Rules on the prompt's length."""

from __future__ import annotations

from dolphin_sim.compiled import compiled


@compiled
def is_long(tokens: int, threshold: float) -> bool:
    """Return True when ``tokens`` reaches the threshold: of the whole prompt, or of its part not cached on the decode
    worker."""
    return tokens >= threshold


@compiled
def is_remote_by_llm_d(prompt_tokens: int, decode_cached_tokens: int, uncached_threshold: float) -> bool:
    """Return what llm-d's prefix-based decider says, with exact token counts.

    Source: llm-d-router, ``prefix_based_pd_decider.go``. A threshold of 0 switches disaggregation off.
    """
    if uncached_threshold == 0 or prompt_tokens < uncached_threshold:
        return False
    return prompt_tokens - decode_cached_tokens >= uncached_threshold
