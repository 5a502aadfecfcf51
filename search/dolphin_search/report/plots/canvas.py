"""Figures as SVG text that is the same for equal data."""

from __future__ import annotations

import io

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

# Okabe and Ito's palette, which people with any colour vision can tell apart.
COLOURS = {
    "learned": "#D55E00",
    "exhaustive-best": "#000000",
    "always-remote": "#0072B2",
    "always-local": "#999999",
    "dynamo-isl-bounding": "#009E73",
    "tuned-cost": "#CC79A7",
    "tuned-effective-length": "#E69F00",
}
OTHER = "#56B4E9"
ACTION_COLOURS = {"local": "#E69F00", "remote": "#0072B2"}


def colour_of(policy: str) -> str:
    """Return the policy's colour, the same in every figure."""
    return COLOURS.get(policy, OTHER)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    return figure


def as_svg(figure: Figure) -> str:
    """Return the figure as an ``<svg>`` element."""
    text = io.StringIO()
    with matplotlib.rc_context(
        {"svg.hashsalt": "dolphin-routing", "svg.fonttype": "none", "font.family": "sans-serif"}
    ):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]
