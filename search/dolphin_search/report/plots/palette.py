"""Colours, in light and in dark surroundings, and how each policy is drawn wherever it appears."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

LineStyle = Literal["-", "--", "-.", ":"]


class Colour(NamedTuple):
    """One colour of the report. Figures are drawn with the light one and named, so that the page can switch."""

    light: str
    dark: str


# Hues after Okabe and Ito, Color Universal Design, 2008: people with any colour vision can tell them apart.
COLOURS: Final = {
    "ink": Colour("#1f2328", "#e4e7eb"),
    "faint": Colour("#66707b", "#9aa4af"),
    "line": Colour("#d5dbe1", "#3a424b"),
    "shade": Colour("#f0f3f6", "#232a31"),
    "good": Colour("#e6f4ee", "#17332a"),
    "card": Colour("#fdfdfe", "#191e23"),
    "vermilion": Colour("#d55e00", "#ff8b3d"),
    "black": Colour("#14171a", "#f4f6f8"),
    "blue": Colour("#0072b2", "#55b0ee"),
    "orange": Colour("#d98f00", "#f0b13a"),
    "purple": Colour("#b8568f", "#e59ac6"),
    "violet": Colour("#6f58b8", "#b3a2f2"),
    "green": Colour("#009e73", "#35c99d"),
    "sky": Colour("#3f9fd8", "#8fd0f7"),
    "olive": Colour("#8f8400", "#d9cf4a"),
    "grey": Colour("#7c868f", "#a7b0b9"),
}
ACTIONS: Final = {"local": "orange", "remote": "blue"}
"""The colour of each action; the rules that always act so have the same."""


class PolicyStyle(NamedTuple):
    """How a policy is drawn."""

    colour: str
    """A key of :data:`COLOURS`."""
    line: LineStyle
    marker: str


_STYLES: Final = {
    "learned": PolicyStyle("vermilion", "-", "o"),
    "exhaustive-best": PolicyStyle("black", "--", "*"),
    "always-local": PolicyStyle("orange", "-", "s"),
    "always-remote": PolicyStyle("blue", "-", "s"),
    "dynamo-default": PolicyStyle("purple", ":", "<"),
    "dynamo-isl-bounding": PolicyStyle("purple", "-", "^"),
    "dynamo-isl-or-load": PolicyStyle("purple", "--", ">"),
    "tuned-dynamo-isl-bounding": PolicyStyle("violet", "-", "v"),
    "tuned-dynamo-isl-or-load": PolicyStyle("violet", "--", "D"),
    "llm-d": PolicyStyle("olive", "-.", "P"),
    "tuned-length": PolicyStyle("sky", "--", "v"),
    "tuned-effective-length": PolicyStyle("sky", "-.", "^"),
    "tuned-cost": PolicyStyle("green", "-", "D"),
}


def style_of(policy: str) -> PolicyStyle:
    """Return how to draw a policy: the same in every figure, grey for one that is not known."""
    return _STYLES.get(policy, PolicyStyle("grey", "--", "X"))
