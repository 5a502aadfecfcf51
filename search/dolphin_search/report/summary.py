"""A comparison on the terminal."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from dolphin_search.comparison import PolicyResult
from dolphin_search.comparison_run import ComparisonRun
from dolphin_search.report.wording import attainment_text, goodput_text, lead_text, number, seconds


def summary_table(run: ComparisonRun) -> Table:
    """Return a row for each policy: the learned one first, then by attainment; the best rule is marked.

    It fits into 100 columns.
    """
    # Names of workloads may look like Rich's markup, so that everything is given as plain text.
    table = Table(
        title=Text(
            f"{run.cluster.split}, {run.source.workload.name} at {run.source.rate_per_s:.3g} requests/s, held out"
        ),
        caption=Text("attained and lead in %, with 95 % intervals; * the best rule"),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("\npolicy", no_wrap=True)
    for name in ("\nattained", "P90\nTTFT s", "P90\nTPOT ms", "goodput\n/s", "\nlearned leads by"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, result in ordered(run):
        cells = (
            name + (" *" if name == run.best_rule else ""),
            attainment_text(result),
            seconds(result.ttft_ms.p90),
            number(result.tpot_ms.p90, 1),
            goodput_text(run, name),
            lead_text(run, name),
        )
        table.add_row(*map(Text, cells), style="bold" if name == "learned" else None)
    return table


def ordered(run: ComparisonRun) -> list[tuple[str, PolicyResult]]:
    """Return the results as people read them: the learned one, then the others by attainment."""
    return sorted(run.results.items(), key=lambda item: (item[0] != "learned", -item[1].attainment))
