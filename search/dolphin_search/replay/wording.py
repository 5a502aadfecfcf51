"""What a replay measured, as a person reads it."""

from __future__ import annotations

from dolphin_search.replay.rehearsal import AGREEMENT, Rehearsal
from dolphin_search.replay.result import LEAST_MINUTES, Attained, ReplayResult
from dolphin_search.report.wording import interval_text, number, per_cent, seconds, signed


def result_lines(result: ReplayResult) -> list[str]:
    """Return what was measured, a line each."""
    measured = Attained.of(result.outcomes(), result.slo)
    lines = [
        f"{measured.requests} requests: {per_cent(measured.attainment)} keep the promise, {_interval(measured)}",
        latency_line(measured),
    ]
    missing = [f"{count} {what}" for what in ("failed", "unfinished", "not-sent") if (count := result.count(what))]
    if missing:
        lines.append(f"counted as missed: {', '.join(missing)}")
    lines += [f"{count} times: {reason}" for reason, count in result.reasons]
    if result.other_lengths:
        lines.append(f"{result.other_lengths} answers are not as long as asked for")
    lines.append(lag_text(result))
    return lines


def _interval(measured: Attained) -> str:
    if measured.interval is None:
        return f"too short for an interval, which takes {LEAST_MINUTES} minutes of the workload's time"
    return f"95 % interval {interval_text(measured.interval)} %"


def latency_line(attained: Attained) -> str:
    """Return latencies at the 50th, 90th and 99th percentile."""
    ttft, tpot = attained.ttft_ms, attained.tpot_ms
    return (
        f"TTFT P50/90/99: {seconds(ttft.p50)}/{seconds(ttft.p90)}/{seconds(ttft.p99)} s, "
        f"TPOT: {number(tpot.p50, 1)}/{number(tpot.p90, 1)}/{number(tpot.p99, 1)} ms"
    )


def lag_text(result: ReplayResult) -> str:
    """Return how late requests were sent, and whether that spoils the result."""
    lag, limit_ms = result.lag_ms, result.lag_limit_ms
    text = f"sent late by {number(lag.p50, 1)} ms on the median and {number(lag.p99, 1)} ms at the 99th percentile"
    if result.time_scale != 1.0:
        text += ", in the workload's time"
    if result.is_void:
        return (
            f"VOID: {text}; with more than {number(limit_ms, 0)} ms the result says nothing: this machine is too busy"
        )
    return text


def agreement_text(rehearsal: Rehearsal) -> str:
    """Return whether measurement and prediction agree."""
    points = signed(100 * rehearsal.difference, 1)
    limit = number(100 * AGREEMENT, 0)
    if rehearsal.result.is_void:
        return f"no judgement: {lag_text(rehearsal.result)}"
    if rehearsal.agrees:
        return f"measured minus predicted: {points} points, within {limit}"
    return f"measured minus predicted: {points} points, more than {limit} apart"


def rehearsal_lines(rehearsal: Rehearsal) -> list[str]:
    """Return prediction and measurement, a line each."""
    predicted, measured = rehearsal.predicted, rehearsal.measured
    result = rehearsal.result
    return [
        f"predicted {per_cent(predicted.attainment)} of {predicted.requests} requests; {latency_line(predicted)}; "
        f"{_interval(predicted)} in {rehearsal.plan.simulations} simulations with delays, "
        f"{per_cent(rehearsal.undelayed_attainment)} without",
        f"measured  {per_cent(measured.attainment)} of {measured.requests} requests; {latency_line(measured)}",
        *(f"{count} requests failed: {reason}" for reason, count in result.reasons),
        f"{per_cent(rehearsal.other_decisions)} took another path than predicted; {lag_text(result)}",
        agreement_text(rehearsal),
    ]
