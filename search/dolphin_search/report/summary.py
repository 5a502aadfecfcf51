"""A comparison on the terminal."""

from __future__ import annotations

import math

from rich.table import Table

from dolphin_search.comparison import PolicyResult
from dolphin_search.comparison_run import ComparisonRun


def summary_table(run: ComparisonRun) -> Table:
    """Return a row for each policy: the learned one first, then by attainment; the best rule is marked."""
    table = Table(
        title=f"{run.cluster.split}, {run.source.workload.name} at {run.source.rate_per_s:.3g} requests/s, held out",
        caption="attainment and lead in %, with 95 % intervals; * the best rule",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("policy", no_wrap=True)
    for name in ("attained", "P90 TTFT s", "P90 TPOT ms", "goodput/s", "learned leads by"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, result in ordered(run):
        table.add_row(
            name + (" *" if name == run.best_rule else ""),
            attainment_text(result),
            f"{result.ttft_ms.p90 / 1e3:.1f}",
            f"{result.tpot_ms.p90:.1f}",
            goodput_text(run, name),
            lead_text(run, name),
            style="bold" if name == "learned" else None,
        )
    return table


def ordered(run: ComparisonRun) -> list[tuple[str, PolicyResult]]:
    """Return the results as people read them: the learned one, then the others by attainment."""
    return sorted(run.results.items(), key=lambda item: (item[0] != "learned", -item[1].attainment))


def attainment_text(result: PolicyResult) -> str:
    """Return the attainment with its interval, in per cent."""
    low, high = result.attainment_interval
    return f"{100 * result.attainment:.1f} [{100 * low:.0f}–{100 * high:.0f}]"


def goodput_text(run: ComparisonRun, name: str) -> str:
    """Return the goodput, or a dash where it was not measured."""
    value = run.goodputs_per_s.get(name)
    if value is None:
        return "–"
    return "no limit found" if math.isinf(value) else f"{value:.2f}"


def lead_text(run: ComparisonRun, name: str) -> str:
    """Return by how many points the learned table leads a policy, with the interval."""
    learned = run.results.get("learned")
    if learned is None or name == "learned":
        return ""
    lead, (low, high) = learned.lead_over(run.results[name])
    return f"{100 * lead:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
