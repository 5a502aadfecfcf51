"""What one simulated period shows, as a document and as text."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dolphin_router.decision import Action
from dolphin_sim.engine.state import Floats
from dolphin_sim.outcomes import Outcomes
from dolphin_sim.policy import Policy
from dolphin_sim.problem import Problem

PERCENTILES = (50, 90, 99)


def run_document(
    problem: Problem, policy: Policy, outcomes: Outcomes, *, simulated_s_per_wall_s: float
) -> dict[str, Any]:
    """Return the figures of a period, ready for JSON.

    A percentile that falls on a request without its token is null. Attainment and the shares run from 0 to 1.
    """
    return {
        "policy": policy.describe(),
        "profile": problem.cluster.profile.name,
        "split": str(problem.cluster.split),
        "workload": problem.workload.name,
        "rate_per_s": problem.rate_per_s,
        "seed": problem.seed,
        "period_s": problem.window.period_s,
        "settle_s": problem.window.settle_s,
        "slo": problem.slo.model_dump(mode="json"),
        "requests": len(outcomes),
        "rejected": int(outcomes.is_rejected.sum()),
        "ttft_ms": _percentiles(outcomes.ttft_ms),
        "tpot_ms": _percentiles(outcomes.tpot_ms),
        "attainment": float(outcomes.is_met(problem.slo).mean()),
        "remote_share": float((outcomes.path == Action.REMOTE).mean()),
        "reuse": int(outcomes.reused_tokens.sum()) / int(outcomes.prompt_tokens.sum()),
        "preemptions": int(outcomes.preemptions.sum()),
        "simulated_s_per_wall_s": simulated_s_per_wall_s,
    }


def run_text(document: dict[str, Any]) -> str:
    """Return a :func:`run_document` as lines to read."""
    lines = [
        f"{document['policy']} on {document['split']} {document['profile']}, {document['workload']} at "
        f"{document['rate_per_s']:g} requests/s: {document['requests']} requests scored in {document['period_s']:g} s",
        f"{'':<12}{'P50':>10}{'P90':>10}{'P99':>10}",
    ]
    for title, name, digits in (("TTFT ms", "ttft_ms", 0), ("TPOT ms", "tpot_ms", 1)):
        values = document[name].values()
        lines.append(f"{title:<12}" + "".join(f"{_number(value, digits):>10}" for value in values))
    lines += [
        f"attainment   {document['attainment']:.1%} of requests met the SLO",
        f"remote       {document['remote_share']:.1%} of requests",
        f"reuse        {document['reuse']:.1%} of prompt tokens came from a cache",
        f"preemptions  {document['preemptions']}",
        f"rejected     {document['rejected']}",
        f"speed        {document['simulated_s_per_wall_s']:,.0f} simulated s per wall s",
    ]
    return "\n".join(lines)


def _percentiles(times_ms: Floats) -> dict[str, float | None]:
    # The value of a request, never one between two: times may be infinite.
    values = np.percentile(times_ms, PERCENTILES, method="inverted_cdf").tolist()
    return {
        f"p{percentile}": value if math.isfinite(value) else None
        for percentile, value in zip(PERCENTILES, values, strict=True)
    }


def _number(value: float | None, digits: int) -> str:
    return "never" if value is None else f"{value:,.{digits}f}"
