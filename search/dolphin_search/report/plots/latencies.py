"""Latencies of the policies: whole distributions, and the plane of the two limits."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from dolphin_search.comparison_run import ComparisonRun
from dolphin_search.report.plots.canvas import as_svg, colour_of, new_figure
from dolphin_search.report.summary import ordered
from dolphin_sim.outcomes import Outcomes

SHOWN = ("learned", "exhaustive-best", "always-remote", "dynamo-isl-bounding", "tuned-cost", "tuned-effective-length")
POINTS = 300
SMALLEST_SHOWN = 1e-3


def plot_distributions(run: ComparisonRun) -> str:
    """Draw what share of requests is within each TTFT and TPOT."""
    figure = new_figure(10, 4)
    left, right = figure.subplots(1, 2, sharey=True)
    names = [name for name in dict.fromkeys((*SHOWN, run.best_rule)) if name in run.results]
    for name in names:
        outcomes = Outcomes.concatenate(list(run.results[name or ""].outcomes))
        _draw_shares(left, outcomes.ttft_ms / 1e3, name or "")
        _draw_shares(right, outcomes.tpot_ms, name or "")
    left.set_xlabel("TTFT (s)")
    right.set_xlabel("TPOT (ms)")
    left.set_ylabel("requests within it (%)")
    if run.slo.ttft_us_per_prompt_token == 0:
        left.axvline(run.slo.ttft_ms / 1e3, color="#666666", linestyle=":", label="limit")
    right.axvline(run.slo.tpot_ms, color="#666666", linestyle=":", label="limit")
    right.legend(loc="lower right", fontsize=8)
    return as_svg(figure)


def _draw_shares(axes: Axes, values: NDArray[np.float64], name: str) -> None:
    # Of all requests: those that never had an answer keep the curve below 100 %. A logarithmic axis has no 0.
    ordered_values = np.sort(np.maximum(values, SMALLEST_SHOWN))
    shares = 100 * np.arange(1, len(values) + 1) / len(values)
    step = max(1, len(values) // POINTS)
    axes.plot(ordered_values[::step], shares[::step], color=colour_of(name), label=name, linewidth=1.5)
    axes.set_xscale("log")


def plot_plane(run: ComparisonRun) -> str:
    """Draw each policy's P90 TTFT against its P90 TPOT, and the attainments with their intervals."""
    figure = new_figure(10, 4.6)
    plane, bars = figure.subplots(1, 2)
    for name, result in ordered(run):
        x, y = result.ttft_ms.p90 / 1e3, result.tpot_ms.p90
        plane.scatter([x], [y], color=colour_of(name), s=40)
        plane.annotate(name, (x, y), xytext=(4, 3), textcoords="offset points", fontsize=7, annotation_clip=True)
    plane.axhline(run.slo.tpot_ms, color="#666666", linestyle=":")
    if run.slo.ttft_us_per_prompt_token == 0:
        plane.axvline(run.slo.ttft_ms / 1e3, color="#666666", linestyle=":")
    plane.set_xscale("log")
    plane.set_yscale("log")
    # Policies that lose both limits by far would squash the others into a corner; the table has them.
    plane.set_xlim(right=20 * max(run.slo.ttft_ms, 1.0) / 1e3)
    plane.set_ylim(top=4 * max(run.slo.tpot_ms, 1.0))
    plane.set_xlabel("P90 TTFT (s)")
    plane.set_ylabel("P90 TPOT (ms)")
    by_attainment = sorted(run.results.items(), key=lambda item: item[1].attainment)
    for row, (name, result) in enumerate(by_attainment):
        low, high = result.attainment_interval
        bars.plot([100 * low, 100 * high], [row, row], color=colour_of(name), linewidth=2)
        bars.plot([100 * result.attainment], [row], "o", color=colour_of(name), markersize=5)
    bars.set_yticks(range(len(by_attainment)), [name for name, _ in by_attainment], fontsize=8)
    bars.set_xlabel("attainment (%), 95 % interval")
    return as_svg(figure)
