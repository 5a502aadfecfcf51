"""The plane of the two limits."""

from __future__ import annotations

import math

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dolphin_search.comparison_run import ComparisonRun
from dolphin_search.report.plots.canvas import draw, light, plain, set_log_scale, set_margins
from dolphin_search.report.plots.labels import Point, add_labels
from dolphin_search.report.plots.limits import Limits
from dolphin_search.report.plots.palette import style_of

LARGEST_RATIO = 8.0
"""Policies further than this beyond a limit are drawn at the plane's edge: they would squash the others into a
corner."""
SMALLEST_RATIO = 0.6


def plot_plane(name: str, run: ComparisonRun) -> Markup:
    """Draw each policy's P90 TTFT against its P90 TPOT."""
    limits = Limits.of(run)

    def paint(figure: Figure, axes: Axes) -> None:
        set_margins(figure, left=0.65, bottom=0.5)
        set_log_scale(axes, "x", ticks=(1.0, 2.0, 5.0))
        set_log_scale(axes, "y", ticks=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0))
        values = {policy: (result.ttft_ms.p90 / 1e3, result.tpot_ms.p90) for policy, result in run.results.items()}
        left, right = _span([x for x, _ in values.values()], limits.ttft_s)
        bottom, top = _span([y for _, y in values.values()], limits.tpot_ms)
        axes.set_xlim(left / 1.15, right * 1.15)
        axes.set_ylim(bottom / 1.12, top * 1.12)
        if run.slo.kind == "both":
            axes.axvspan(left / 1.15, limits.ttft_s, 0, _height_of(axes, limits.tpot_ms), color=light("good"), zorder=0)
        axes.axvline(limits.ttft_s, color=light("ink"), linewidth=1)
        axes.axhline(limits.tpot_ms, color=light("ink"), linewidth=1)
        points: list[Point] = []
        for policy, (x, y) in values.items():
            style = style_of(policy)
            shown = Point(min(max(x, left), right), min(max(y, bottom), top), _label(policy, x, y, right, top))
            points.append(shown)
            axes.plot(
                [shown.x],
                [shown.y],
                style.marker,
                color=light(style.colour),
                markersize=10 if style.marker == "*" or policy == "learned" else 7,
                markeredgecolor=light("card"),
                markeredgewidth=0.8,
                clip_on=False,
                zorder=3,
            )
        axes.set_xlabel("P90 TTFT (s)")
        axes.set_ylabel("P90 TPOT (ms)")
        add_labels(axes, points, font_pt=8)

    return draw(name, "P90 TTFT against P90 TPOT of each policy, with the limits", size=(7.4, 4.6), paint=paint)


def _span(values: list[float], limit: float) -> tuple[float, float]:
    known = [value for value in values if 0 < value < math.inf]
    middle = limit if limit > 0 else (min(known) if known else 1.0)
    most = LARGEST_RATIO * middle
    highest = max((value for value in known if value <= most), default=middle)
    return min([*known, SMALLEST_RATIO * middle]), most if len(known) < len(values) or max(known) > most else max(
        highest, middle * 1.5
    )


def _label(policy: str, x: float, y: float, right: float, top: float) -> str:
    beyond = []
    if x > right:
        beyond.append(f"TTFT {plain(round(x, 1))} s" if math.isfinite(x) else "no first token")
    if y > top:
        beyond.append(f"TPOT {round(y)} ms" if math.isfinite(y) else "unfinished")
    return f"{policy} ({', '.join(beyond)})" if beyond else policy


def _height_of(axes: Axes, y: float) -> float:
    """Return where a value lies, as a share of the axes' height."""
    bottom, top = axes.get_ylim()
    return (math.log(max(y, bottom)) - math.log(bottom)) / (math.log(top) - math.log(bottom))
