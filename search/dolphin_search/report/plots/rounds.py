"""The course of a search."""

from __future__ import annotations

import numpy as np

from dolphin_search.report.plots.canvas import COLOURS, as_svg, new_figure
from dolphin_search.samplers.base import Round


def plot_rounds(rounds: list[Round], *, scan_rounds: int) -> str:
    """Draw each round's attainment and the best so far; the scan is shaded."""
    attainment = 100 * np.array([entry.measurement.attainment for entry in rounds])
    number = np.arange(1, len(rounds) + 1)
    figure = new_figure(10, 3.2)
    axes = figure.subplots()
    if scan_rounds:
        axes.axvspan(0.5, min(scan_rounds, len(rounds)) + 0.5, color="#eeeeee", label="scan")
    axes.plot(number, attainment, "o", markersize=3.5, color="#0072B2", label="round")
    axes.step(number, np.maximum.accumulate(attainment), where="post", color=COLOURS["learned"], label="highest so far")
    axes.set_xlabel("round")
    axes.set_ylabel("attainment (%)")
    axes.legend(loc="lower right")
    return as_svg(figure)
