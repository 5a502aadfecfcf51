"""Names beside points, so that no name covers another or a point."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from matplotlib.axes import Axes

from dolphin_search.report.plots.canvas import light

_DISTANCES_PT: Final = (9.0, 16.0, 26.0, 38.0, 52.0, 68.0, 86.0, 106.0)
_DIRECTIONS: Final = tuple(math.radians(degrees) for degrees in (0, 45, -45, 180, 135, -135, 90, -90))
_TOUCHING_PT: Final = 3.0
_POINT_RADIUS_PT: Final = 4.5


class Point(NamedTuple):
    """A point in data coordinates, and its name."""

    x: float
    y: float
    name: str


class _Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: _Box) -> float:
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(width, 0.0) * max(height, 0.0)


def add_labels(axes: Axes, points: Sequence[Point], *, font_pt: float, separator: str = "\n") -> None:
    """Write each point's name beside it, with a thin line where there was no room close by.

    Points that touch share a label, their names with the separator between them. Of several places the nearest free
    one is taken; where none is free, that which covers the least. The axes must have their place in the figure.
    """
    # Limits that follow from the data are only found when somebody asks for them.
    axes.axis(axes.axis())
    groups = _touching(axes, points)
    frame = _frame(axes)
    taken = [_around(x, y) for x, y, _ in groups]
    for x, y, names in groups:
        text = separator.join(names)
        lines = text.split("\n")
        width = 0.6 * font_pt * max(map(len, lines)) + 2.0
        height = 1.25 * font_pt * len(lines)
        places = [
            (distance, _beside(x, y, distance, direction, width, height))
            for distance, direction in itertools.product(_DISTANCES_PT, _DIRECTIONS)
        ]
        distance, box = min(places, key=lambda place: _cost(place[1], taken, frame) + place[0] / 1e3)
        taken.append(box)
        _write(axes, (x, y), box, text, font_pt=font_pt, with_line=distance > _DISTANCES_PT[0])


def _touching(axes: Axes, points: Sequence[Point]) -> list[tuple[float, float, list[str]]]:
    scale = 72.0 / axes.figure.dpi
    groups: list[tuple[float, float, list[str]]] = []
    for point in points:
        x, y = (float(value) * scale for value in axes.transData.transform((point.x, point.y)))
        for other_x, other_y, names in groups:
            if math.hypot(x - other_x, y - other_y) < _TOUCHING_PT:
                names.append(point.name)
                break
        else:
            groups.append((x, y, [point.name]))
    return groups


def _frame(axes: Axes) -> _Box:
    box = axes.get_position()
    scale = 72.0 / axes.figure.dpi
    width, height = axes.figure.bbox.width * scale, axes.figure.bbox.height * scale
    return _Box(box.x0 * width, box.y0 * height, box.x1 * width, box.y1 * height)


def _around(x: float, y: float) -> _Box:
    return _Box(x - _POINT_RADIUS_PT, y - _POINT_RADIUS_PT, x + _POINT_RADIUS_PT, y + _POINT_RADIUS_PT)


def _beside(x: float, y: float, distance: float, direction: float, width: float, height: float) -> _Box:
    """Return the label's box: its edge or corner towards the point is that far from it."""
    cos, sin = math.cos(direction), math.sin(direction)
    left = x + distance * cos - width * (1 - cos) / 2
    bottom = y + distance * sin - height * (1 - sin) / 2
    return _Box(left, bottom, left + width, bottom + height)


def _cost(box: _Box, taken: Sequence[_Box], frame: _Box) -> float:
    area = (box.right - box.left) * (box.top - box.bottom)
    return area - box.overlap(frame) + sum(box.overlap(other) for other in taken)


def _write(axes: Axes, point: tuple[float, float], box: _Box, text: str, *, font_pt: float, with_line: bool) -> None:
    x, y = point
    middle = (box.bottom + box.top) / 2
    # Text starts at the side that faces the point, as its width in the reader's font is not known.
    align = "left" if box.left >= x else "right" if box.right <= x else "center"
    text_x = {"left": box.left + 1, "right": box.right - 1, "center": (box.left + box.right) / 2}[align]
    scale = axes.figure.dpi / 72.0
    data_x, data_y = axes.transData.inverted().transform((x * scale, y * scale))
    if with_line:
        end_x = min(max(x, box.left), box.right)
        end_y = min(max(y, box.bottom), box.top)
        axes.annotate(
            "",
            (data_x, data_y),
            xytext=(end_x - x, end_y - y),
            textcoords="offset points",
            arrowprops={"arrowstyle": "-", "color": light("faint"), "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0},
        )
    axes.annotate(
        text,
        (data_x, data_y),
        xytext=(text_x - x, middle - y),
        textcoords="offset points",
        ha=align,
        va="center",
        fontsize=font_pt,
        linespacing=1.1,
    )
