"""The course of a search."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dolphin_search.environments.base import Actions
from dolphin_search.report.plots.canvas import draw, light, set_margins
from dolphin_search.samplers import RewardName, Round
from dolphin_search.samplers.rewards import table_reward


def plot_rounds(name: str, rounds: Sequence[Round], *, scan_rounds: int, reward: RewardName) -> Markup:
    """Draw each round's attainment and that of the table which was best so far; the scan is shaded.

    Args:
        name: of the figure.
        rounds: oldest first, at least one.
        scan_rounds: how many of them scan the clusters.
        reward: by which tables are judged.
    """

    def paint(figure: Figure, axes: Axes) -> None:
        set_margins(figure, left=0.6, bottom=0.5, top=0.3)
        numbers = range(1, len(rounds) + 1)
        scanned = min(scan_rounds, len(rounds))
        if scanned:
            axes.axvspan(0.5, scanned + 0.5, color=light("shade"), zorder=0)
            axes.text(0.5, 1.02, " scan of the clusters", transform=axes.get_xaxis_transform(), color=light("faint"))
        measured = [100 * entry.measurement.attainment for entry in rounds]
        axes.plot(numbers, measured, "o", markersize=4, color=light("grey"))
        best = [100 * value for value in best_so_far(rounds, reward)]
        axes.step([*numbers, len(rounds) + 0.5], [*best, best[-1]], where="post", color=light("vermilion"), linewidth=2)
        axes.set_xlim(0.5, len(rounds) + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("round")
        axes.set_ylabel("attainment in training (%)")

    return draw(name, "Attainment by round, and of the best table so far", size=(7.4, 2.9), paint=paint)


def best_so_far(rounds: Sequence[Round], reward: RewardName) -> list[float]:
    """Return after each round the mean attainment of the table that is then best by its mean reward."""
    sums: dict[Actions, tuple[float, float, int]] = {}
    values: list[float] = []
    for entry in rounds:
        rewards, attainments, count = sums.get(entry.actions, (0.0, 0.0, 0))
        sums[entry.actions] = (
            rewards + table_reward(entry.measurement, reward),
            attainments + entry.measurement.attainment,
            count + 1,
        )
        _, attained, times = max(sums.values(), key=lambda total: total[0] / total[2])
        values.append(attained / times)
    return values
