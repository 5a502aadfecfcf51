"""Whole distributions of the latencies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dolphin_search.comparison_run import ComparisonRun
from dolphin_search.report.plots.canvas import draw, light, set_log_scale, set_margins
from dolphin_search.report.plots.limits import Limits
from dolphin_search.report.plots.palette import style_of
from dolphin_sim.outcomes import Outcomes

SHOWN: Final = ("learned", "always-remote", "dynamo-isl-bounding", "tuned-cost", "exhaustive-best")
"""Besides the best rule: few enough to tell their curves apart."""
POINTS = 250
LEAST_SPAN = 2.0
"""Of the axis around the limit, as a factor both ways."""


class _Quantity(NamedTuple):
    name: str
    label: str
    per_unit_ms: float


_TTFT: Final = _Quantity("ttft", "time to first token, TTFT (s)", 1e3)
_TPOT: Final = _Quantity("tpot", "time per later token, TPOT (ms)", 1.0)


def shown_policies(run: ComparisonRun) -> list[str]:
    """Return the names of the policies whose distributions are drawn."""
    names = dict.fromkeys((*SHOWN[:1], run.best_rule, *SHOWN[1:]))
    return [name for name in names if name is not None and name in run.results]


def plot_distributions(name: str, run: ComparisonRun) -> list[Markup]:
    """Draw what share of requests is within each TTFT, and within each TPOT: two panels."""
    limits = Limits.of(run)
    outcomes = {policy: Outcomes.concatenate(list(run.results[policy].outcomes)) for policy in shown_policies(run)}
    ttft = {policy: part.ttft_ms / _TTFT.per_unit_ms for policy, part in outcomes.items()}
    tpot = {policy: part.tpot_ms / _TPOT.per_unit_ms for policy, part in outcomes.items()}
    return [_plot(name, _TTFT, ttft, limits.ttft_s), _plot(name, _TPOT, tpot, limits.tpot_ms)]


def _plot(name: str, quantity: _Quantity, values: dict[str, NDArray[np.float64]], limit: float) -> Markup:
    def paint(figure: Figure, axes: Axes) -> None:
        set_margins(figure, left=0.6, bottom=0.5)
        set_log_scale(axes, "x", ticks=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if quantity is _TPOT else (1.0,))
        low, high = _span(list(values.values()), limit)
        axes.axvline(limit, color=light("ink"), linewidth=1)
        for policy, part in values.items():
            style = style_of(policy)
            is_learned = policy == "learned"
            axes.plot(
                *_cumulative(np.maximum(part, low)),
                color=light(style.colour),
                linestyle=style.line,
                # Beneath the others and wider, so that both show where they coincide.
                linewidth=4.0 if is_learned else 1.6,
                alpha=0.75 if is_learned else 1.0,
                zorder=2.0 if is_learned else 2.5,
            )
        axes.set_xlim(low, high)
        axes.set_ylim(0, 102)
        axes.annotate("limit", (limit, 0), xytext=(3, 4), textcoords="offset points", color=light("ink"), fontsize=8.5)
        axes.set_xlabel(quantity.label)
        axes.set_ylabel("share of requests within it (%)")

    description = f"Cumulative distribution of the {quantity.label} of {', '.join(values)}, with the limit"
    return draw(f"{name}-{quantity.name}", description, size=(5.4, 3.4), paint=paint)


def _span(values: Sequence[NDArray[np.float64]], limit: float) -> tuple[float, float]:
    """Return the ends of the axis: nearly all values, and the surroundings of the limit."""
    together = np.concatenate(values)
    together = together[(together > 0) & np.isfinite(together)]
    low, high = np.quantile(together, (0.005, 0.998)) if len(together) else (limit, limit)
    middle = limit if limit > 0 else float(np.sqrt(low * high)) or 1.0
    return float(min(low, middle / LEAST_SPAN)), float(max(high, middle * LEAST_SPAN))


def _cumulative(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ends of the curve's steps; requests without an answer keep its end below 100 %."""
    rows = np.unique(np.linspace(0, len(values) - 1, min(len(values), POINTS)).astype(np.int64))
    ends = np.sort(values)[rows]
    shares = 100.0 * (rows + 1) / len(values)
    is_finite = np.isfinite(ends)
    return ends[is_finite], shares[is_finite]
