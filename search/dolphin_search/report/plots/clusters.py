"""Clusters and their actions in token space."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dolphin_router.contract import RoutingTable
from dolphin_router.decision import Action
from dolphin_router.features import Features, features_in_tokens
from dolphin_router.load import IDLE
from dolphin_router.policies import policy_from_table
from dolphin_search.features import Matrix
from dolphin_search.report.plots.canvas import draw, light, set_log_scale, set_margins
from dolphin_search.report.plots.labels import Point, add_labels
from dolphin_search.report.plots.palette import ACTIONS

MOST_POINTS = 700
SEED = 0
SPREAD = 0.08
"""Standard deviation of what is added to the logarithm of expected answers: they have three lengths only."""


class _Panel(NamedTuple):
    name: str
    column: int
    """Of the features; drawn against the first, the prompt's length."""
    label: str
    spread: float


PANELS: Final = (
    _Panel("decode", 2, "not cached on the decode worker (tokens)", 0.0),
    _Panel("prefill", 1, "not cached on the prefill worker (tokens)", 0.0),
    _Panel("answer", 3, "expected answer (tokens)", SPREAD),
)
_MARKERS: Final = {Action.LOCAL: "o", Action.REMOTE: "^"}


def plot_clusters(name: str, table: RoutingTable, features: Matrix) -> list[Markup]:
    """Draw a sample of the history, coloured by what the table does with it, and the numbered centres: three panels.

    Args:
        name: prefix of the figures' names.
        table: whose clusters and actions are shown.
        features: n × 4, in tokens.
    """
    random = np.random.default_rng(SEED)
    sample = features
    if len(features) > MOST_POINTS:
        sample = features[np.sort(random.choice(len(features), MOST_POINTS, replace=False))]
    policy = policy_from_table(table)
    actions = np.array([policy.decide(Features(*row), IDLE).action for row in sample.tolist()])
    shift = np.exp(random.normal(size=len(sample)))
    figures: list[Markup] = []
    for panel in PANELS:
        # A logarithmic axis has no 0.
        x, y = np.maximum(sample[:, [0, panel.column]], 1.0).T
        y = y * shift**panel.spread

        def paint(figure: Figure, axes: Axes, panel: _Panel = panel, x: Matrix = x, y: Matrix = y) -> None:
            set_margins(figure, left=0.65, bottom=0.5)
            set_log_scale(axes, "x")
            set_log_scale(axes, "y", ticks=(1.0, 2.0, 5.0) if panel.spread else (1.0,))
            for action, marker in _MARKERS.items():
                chosen = actions == action
                colour = light(ACTIONS[action.text])
                axes.plot(x[chosen], y[chosen], marker, color=colour, markersize=3, alpha=0.45, markeredgewidth=0)
            axes.set_xlabel("prompt (tokens)")
            axes.set_ylabel(panel.label)
            _paint_centres(axes, table, panel)

        description = f"Requests by prompt length and {panel.label}, by action, with the clusters' centres"
        figures.append(draw(f"{name}-{panel.name}", description, size=(4.4, 3.7), paint=paint))
    return figures


def _paint_centres(axes: Axes, table: RoutingTable, panel: _Panel) -> None:
    transform = table.decider.transform
    centres: list[Point] = []
    for number, cluster in enumerate(table.decider.clusters):
        tokens = features_in_tokens(cluster.centre, transform.mean, transform.scale)
        centre = Point(max(tokens[0], 1.0), max(tokens[panel.column], 1.0), str(number))
        centres.append(centre)
        axes.plot(
            [centre.x],
            [centre.y],
            _MARKERS[Action.from_text(cluster.action)],
            color=light(ACTIONS[cluster.action]),
            markersize=8,
            markeredgecolor=light("card"),
            markeredgewidth=1.2,
        )
    add_labels(axes, centres, font_pt=10, separator=", ")
