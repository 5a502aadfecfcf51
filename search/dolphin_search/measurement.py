"""What one period tells about one table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dolphin_router.contract import Slo
from dolphin_sim.outcomes import Outcomes

WORST_RATIO = 1e3
BEST_RATIO = 1e-2


@dataclass(frozen=True)
class Measurement:
    """Shares and scores over the scored requests of a period."""

    requests: int
    attainment: float
    """Share of requests inside their SLO; failed and unfinished ones are not."""
    log_latency: float
    """Mean of −ln(latency / limit): 0 at the limit, above 0 inside. Smooth where attainment jumps."""
    cluster_requests: tuple[int, ...]
    cluster_attainment: tuple[float, ...]
    """Of each cluster's requests; 0 for a cluster without any."""


def measure(outcomes: Outcomes, slo: Slo, *, clusters: int) -> Measurement:
    """Sum up the outcomes of a period."""
    is_met = outcomes.is_met(slo)
    # A request that fits into no worker is refused before it gets a cluster.
    is_routed = outcomes.cluster >= 0
    requests = np.bincount(outcomes.cluster[is_routed], minlength=clusters)
    met = np.bincount(outcomes.cluster[is_routed], weights=is_met[is_routed], minlength=clusters)
    return Measurement(
        requests=len(outcomes),
        attainment=float(is_met.mean()) if len(outcomes) else 0.0,
        log_latency=mean_log_latency(outcomes, slo),
        cluster_requests=tuple(requests.tolist()),
        cluster_attainment=tuple((met / np.maximum(requests, 1)).tolist()),
    )


def mean_log_latency(outcomes: Outcomes, slo: Slo) -> float:
    """Return the mean of −ln(latency / limit): end to end, or of the tighter limit when both hold.

    The ratio is cut at 1/100 and 1,000, so that one lost request does not weigh more than a few hundred others.
    """
    if len(outcomes) == 0:
        return 0.0
    ttft_limit_ms = outcomes.ttft_limit_ms(slo)
    later_tokens = outcomes.output_tokens - 1
    with np.errstate(invalid="ignore", divide="ignore"):
        if slo.kind == "both":
            # fmax: of a limit of 0 that is met, 0 / 0, the other limit decides.
            ratio = np.fmax(outcomes.ttft_ms / ttft_limit_ms, outcomes.tpot_ms / slo.tpot_ms)
        else:
            limit_ms = ttft_limit_ms + later_tokens * slo.tpot_ms
            ratio = (outcomes.finish_s - outcomes.arrival_s) * 1e3 / limit_ms
    # A limit of 0 that is met makes 0 / 0.
    ratio = np.clip(np.nan_to_num(ratio, nan=BEST_RATIO, posinf=WORST_RATIO), BEST_RATIO, WORST_RATIO)
    return float(-np.log(ratio).mean())
