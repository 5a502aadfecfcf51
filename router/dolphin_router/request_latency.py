"""The latencies of a request that has ended, as far as they can be seen from the router."""

from __future__ import annotations

from typing import NamedTuple

from .contract import Slo
from .request_record import RequestRecord


class RequestLatency(NamedTuple):
    """In milliseconds; none where it cannot be told."""

    ttft_ms: float | None
    """Until the first piece of a stream. An answer in one piece does not show when its first token was there."""
    tpot_ms: float | None
    """Mean time of each token after the first; 0 for an answer of one token."""
    duration_ms: float | None
    """From the arrival to the end of the answer."""


def latency_of(record: RequestRecord) -> RequestLatency:
    """Return what a request's times say."""
    finished_s, first_byte_s = record.finished_s, record.first_byte_s
    if finished_s is None:
        return RequestLatency(None, None, None)
    duration_ms = 1000.0 * (finished_s - record.arrived_s)
    if first_byte_s is None or not record.streamed:
        return RequestLatency(None, None, duration_ms)
    tokens = record.generated_tokens
    tpot_ms = None
    if tokens is not None and tokens > 0:
        tpot_ms = 1000.0 * (finished_s - first_byte_s) / (tokens - 1) if tokens > 1 else 0.0
    return RequestLatency(1000.0 * (first_byte_s - record.arrived_s), tpot_ms, duration_ms)


def is_met(slo: Slo, record: RequestRecord, latency: RequestLatency) -> bool | None:
    """Tell whether a request was answered inside the SLO; none where that cannot be told or is not the router's doing.

    A request that failed has missed it, and so has one that a worker refused for a reason of its own (429 or 5xx). One
    that the client gave up, or that was refused as wrong, is not judged. An answer in one piece is judged by its end
    alone, under both kinds of SLO.
    """
    outcome = record.outcome
    if outcome != "completed":
        failed = outcome == "failed" or (record.status is not None and (record.status == 429 or record.status >= 500))
        return False if failed and outcome != "client-closed" else None
    tokens, duration_ms = record.generated_tokens, latency.duration_ms
    prompt_tokens = record.usage_prompt_tokens
    if prompt_tokens is None:
        prompt_tokens = 0 if record.features is None else int(record.features.prompt_tokens)
    if tokens is None or tokens < 1 or duration_ms is None:
        return None
    if latency.ttft_ms is None or latency.tpot_ms is None:
        return duration_ms <= slo.ttft_limit_ms(prompt_tokens) + (tokens - 1) * slo.tpot_ms
    return slo.is_met(
        prompt_tokens=prompt_tokens, output_tokens=tokens, ttft_ms=latency.ttft_ms, tpot_ms=latency.tpot_ms
    )
