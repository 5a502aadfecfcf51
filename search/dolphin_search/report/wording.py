"""Numbers of a comparison as a person reads them."""

from __future__ import annotations

import math

from dolphin_search.bootstrap import Interval
from dolphin_search.comparison import PolicyResult
from dolphin_search.comparison_run import ComparisonRun

NOTHING = "–"
NEVER = "∞"
"""As a latency: no answer came."""


def number(value: float, digits: int) -> str:
    """Return a value with so many digits after the point, or the sign for infinity."""
    if not math.isfinite(value):
        return NEVER
    # Adding 0 takes the sign from a negative zero.
    return f"{round(value, digits) + 0.0:,.{digits}f}".replace("-", "−")


def signed(value: float, digits: int) -> str:
    """Return a difference with its sign; what rounds to 0 has none."""
    text = number(value, digits)
    return f"+{text}" if round(value, digits) > 0 else text


def per_cent(share: float, digits: int = 1) -> str:
    """Return a share as a percentage with its sign."""
    return f"{100 * share:.{digits}f} %"


def seconds(value_ms: float) -> str:
    """Return milliseconds as seconds, with more digits where there are fewer before the point."""
    return number(value_ms / 1e3, 2 if value_ms < 10_000 else 1)


def interval_text(interval: Interval) -> str:
    """Return an interval of shares in per cent."""
    low, high = interval
    return f"{100 * low:.0f}–{100 * high:.0f}"


def attainment_text(result: PolicyResult) -> str:
    """Return the attainment with its interval, in per cent."""
    return f"{100 * result.attainment:.1f} [{interval_text(result.attainment_interval)}]"


def points_text(difference: float, interval: Interval) -> str:
    """Return a difference of two shares with its interval, in points."""
    low, high = interval
    return f"{signed(100 * difference, 1)} [{signed(100 * low, 1)}, {signed(100 * high, 1)}]"


def lead_text(run: ComparisonRun, name: str) -> str:
    """Return by how many points the learned table leads a policy; nothing for itself or without one."""
    learned = run.results.get("learned")
    return "" if learned is None or name == "learned" else points_text(*learned.lead_over(run.results[name]))


def goodput_text(run: ComparisonRun, name: str) -> str:
    """Return the goodput in requests a second, or a dash where it was not measured."""
    value = run.goodputs_per_s.get(name)
    return NOTHING if value is None else number(value, 2)
