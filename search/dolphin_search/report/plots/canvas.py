"""Figures as SVG elements for the inside of a page: small, the same for equal data, in the page's colours."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable
from typing import Any, Final

import matplotlib
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from dolphin_search.report.plots.palette import COLOURS

_SETTINGS: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "text.color": COLOURS["ink"].light,
    "axes.labelcolor": COLOURS["ink"].light,
    "axes.edgecolor": COLOURS["faint"].light,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": COLOURS["line"].light,
    "grid.linewidth": 0.6,
    "xtick.color": COLOURS["faint"].light,
    "ytick.color": COLOURS["faint"].light,
    "xtick.labelcolor": COLOURS["ink"].light,
    "ytick.labelcolor": COLOURS["ink"].light,
    "figure.facecolor": "none",
}
# Matplotlib's settings belong to the whole process, so that one figure at a time is drawn with ours.
_LOCK: Final = threading.Lock()
_NAMES: Final = {colour.light: f"var(--{name})" for name, colour in COLOURS.items()}
_ANY_COLOUR: Final = re.compile("|".join(_NAMES))


def light(name: str) -> str:
    """Return the colour to draw with; the page replaces it in the dark."""
    return COLOURS[name].light


def draw(name: str, description: str, *, size: tuple[float, float], paint: Callable[[Figure, Axes], None]) -> Markup:
    """Return a figure as an ``<svg>`` element without reference to anything outside it.

    Args:
        name: unique in the page and fit for an id.
        description: what the figure shows, for those who cannot see it.
        size: width and height in inches.
        paint: draws into the figure's only axes.
    """
    text = io.StringIO()
    with _LOCK, matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": name}):
        figure = Figure(figsize=size)
        FigureCanvasSVG(figure)
        paint(figure, figure.add_subplot())
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return Markup(_inlined(text.getvalue(), name, description))


def set_margins(figure: Figure, *, left: float, bottom: float, right: float = 0.12, top: float = 0.12) -> None:
    """Place the axes, by distances in inches from the figure's edges.

    Fixed places, unlike a layout that is found while drawing, tell beforehand where in the figure a value lies.
    """
    width, height = figure.get_size_inches()
    figure.subplots_adjust(left / width, bottom / height, 1 - right / width, 1 - top / height)


def set_log_scale(axes: Axes, which: str, *, ticks: tuple[float, ...] = (1.0,)) -> None:
    """Make an axis logarithmic, with plain numbers at these multiples of powers of ten."""
    getattr(axes, f"set_{which}scale")("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, position: plain(value)))


def plain(value: float) -> str:
    """Return a round value as people write it: 0.1, 20, 5k."""
    return f"{value / 1e3:g}k" if value >= 1_000 else f"{value:g}"


def _inlined(svg: str, name: str, description: str) -> str:
    svg = svg[svg.index("<svg") :]
    attributes, content = svg[len("<svg") :].split(">", 1)
    view = re.search(r'viewBox="[^"]*"', attributes)
    if view is None:
        raise ValueError("Matplotlib's SVG has no viewBox: use a version that writes one")
    # The page styles all SVGs at once; a style element in one would apply to the whole page.
    content = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", content, flags=re.DOTALL)
    content = re.sub(r"<metadata>.*?</metadata>", "", content, flags=re.DOTALL)
    content = re.sub(r"""font: ((?:\w+ )*[\d.]+px) [^;"]*""", r"font: \1 var(--sans)", content)
    content = content.replace("xlink:href", "href")
    content = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", content)
    content = _ANY_COLOUR.sub(lambda match: _NAMES[match[0]], content)
    content = re.sub(r"\n\s*", "\n", content)
    return f'<svg {view[0]} role="img" aria-label="{escape(description)}">{content}'.strip()
