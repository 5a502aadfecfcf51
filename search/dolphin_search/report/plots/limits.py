"""The SLO's limits as lines to draw."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dolphin_search.comparison_run import ComparisonRun
from dolphin_sim.outcomes import Outcomes


class Limits(NamedTuple):
    """Where the lines are."""

    ttft_s: float
    """For the median prompt, as the limit may grow with the prompt."""
    tpot_ms: float
    median_prompt_tokens: float

    @classmethod
    def of(cls, run: ComparisonRun) -> Limits:
        """Return the limits of a comparison; all policies saw the same prompts."""
        outcomes = next(iter(run.results.values())).outcomes
        median = float(np.median(Outcomes.concatenate(list(outcomes)).prompt_tokens))
        return cls(run.slo.ttft_limit_ms(median) / 1e3, run.slo.tpot_ms, median)
