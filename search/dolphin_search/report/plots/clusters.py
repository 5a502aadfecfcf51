"""Clusters and their actions in token space."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from dolphin_router.contract import RoutingTable
from dolphin_router.features import Features, features_in_tokens
from dolphin_router.load import IDLE
from dolphin_router.policies import policy_from_table
from dolphin_search.features import Matrix
from dolphin_search.report.plots.canvas import ACTION_COLOURS, as_svg, new_figure

MOST_POINTS = 1_500
PANELS = ((2, "not cached on the decode worker (tokens)"), (1, "not cached on the prefill worker (tokens)"))


def plot_clusters(table: RoutingTable, features: Matrix) -> str:
    """Draw a sample of the history, coloured by what the table does with it, and the numbered centres."""
    step = max(1, len(features) // MOST_POINTS)
    sample = features[::step]
    policy = policy_from_table(table)
    actions = np.array([policy.decide(Features(*row), IDLE).action.text for row in sample.tolist()])
    figure = new_figure(10, 4.2)
    panels: list[Axes] = list(figure.subplots(1, len(PANELS), sharex=True))
    for axes, (column, label) in zip(panels, PANELS, strict=True):
        for action, colour in ACTION_COLOURS.items():
            rows = sample[actions == action]
            axes.scatter(rows[:, 0], rows[:, column], s=7, color=colour, alpha=0.5, label=action, linewidths=0)
        for number, cluster in enumerate(table.decider.clusters):
            transform = table.decider.transform
            centre = features_in_tokens(cluster.centre, transform.mean, transform.scale)
            x, y = max(centre[0], 1.0), max(centre[column], 1.0)
            axes.scatter([x], [y], s=150, color="white", edgecolors=ACTION_COLOURS[cluster.action], linewidths=2)
            axes.annotate(str(number), (x, y), ha="center", va="center", fontsize=8)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("prompt (tokens)")
        axes.set_ylabel(label)
    panels[0].legend(title="prefill", loc="upper left", markerscale=2)
    return as_svg(figure)
