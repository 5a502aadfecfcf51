"""Attainments and leads with their intervals."""

from __future__ import annotations

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dolphin_search.bootstrap import Interval
from dolphin_search.comparison_run import ComparisonRun
from dolphin_search.report.plots.canvas import draw, light, set_margins
from dolphin_search.report.plots.palette import style_of

ROW_INCHES = 0.235


def plot_attainments(name: str, run: ComparisonRun) -> Markup:
    """Draw each policy's attainment with its interval, the highest on top."""
    rows = [
        (policy, 100 * result.attainment, _in_points(result.attainment_interval))
        for policy, result in sorted(run.results.items(), key=lambda item: item[1].attainment)
    ]

    def paint(figure: Figure, axes: Axes) -> None:
        _paint_rows(figure, axes, rows, run.best_rule)
        axes.set_xlim(-1, 101)
        axes.set_xlabel("attainment (%) with 95 % interval")

    return draw(name, "Attainment of each policy with its interval", size=_size(len(rows)), paint=paint)


def plot_leads(name: str, run: ComparisonRun) -> Markup | None:
    """Draw by how much the learned table leads each policy, in the order of their attainments; None without one."""
    learned = run.results.get("learned")
    if learned is None or len(run.results) == 1:
        return None
    rows: list[tuple[str, float, Interval]] = []
    for policy, result in sorted(run.results.items(), key=lambda item: item[1].attainment):
        if policy != "learned":
            lead, interval = learned.lead_over(result)
            rows.append((policy, 100 * lead, _in_points(interval)))

    def paint(figure: Figure, axes: Axes) -> None:
        _paint_rows(figure, axes, rows, run.best_rule)
        axes.axvline(0, color=light("ink"), linewidth=1, zorder=1)
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, -2), max(high, 2))
        axes.set_xlabel("learned minus policy (points), with 95 % interval")

    return draw(
        name, "Lead of the learned table over each policy with its interval", size=_size(len(rows)), paint=paint
    )


def _size(rows: int) -> tuple[float, float]:
    return 5.4, 0.75 + ROW_INCHES * rows


def _paint_rows(figure: Figure, axes: Axes, rows: list[tuple[str, float, Interval]], best_rule: str | None) -> None:
    set_margins(figure, left=2.0, bottom=0.5)
    axes.grid(axis="y", visible=False)
    for row, (policy, value, (low, high)) in enumerate(rows):
        style = style_of(policy)
        if policy == "learned":
            axes.axhspan(row - 0.5, row + 0.5, color=light("shade"), zorder=0)
        axes.plot([low, high], [row, row], color=light(style.colour), linewidth=1.8, solid_capstyle="butt")
        axes.plot(
            [value],
            [row],
            style.marker,
            color=light(style.colour),
            markersize=9 if style.marker == "*" else 6.5,
            markeredgecolor=light("card"),
            markeredgewidth=0.8,
        )
    labels = [f"{policy} *" if policy == best_rule else policy for policy, _, _ in rows]
    axes.set_yticks(range(len(rows)), labels)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(-0.6, len(rows) - 0.4)


def _in_points(interval: Interval) -> Interval:
    return 100 * interval[0], 100 * interval[1]
