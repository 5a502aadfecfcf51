"""The feature matrix of a history."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dolphin_sim.outcomes import Outcomes

Matrix = NDArray[np.float64]


def feature_matrix(outcomes: Outcomes) -> Matrix:
    """Return the four features of each request, in tokens: n rows, columns as in ``FEATURE_NAMES``."""
    prompt = outcomes.prompt_tokens
    # As `dolphin_router.features.effective_tokens`: the last token is always computed.
    prefill_effective = np.maximum(np.minimum(prompt, 1), prompt - outcomes.prefill_cached_tokens)
    decode_effective = np.maximum(np.minimum(prompt, 1), prompt - outcomes.decode_cached_tokens)
    columns = (prompt, prefill_effective, decode_effective, outcomes.expected_output_tokens)
    return np.column_stack(columns).astype(np.float64)
