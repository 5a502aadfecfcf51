"""The report: one HTML file that needs no network, and the same as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dolphin_search.replay.rehearsal import rehearsal_document
from dolphin_search.report.case import LearnedCase
from dolphin_search.report.document import comparison_document, rounds_document, table_document
from dolphin_search.report.plots.palette import COLOURS
from dolphin_search.report.view import case_view
from dolphin_sim.result_file import write_result

FORMAT = "dolphinrouting.dev/report/v1"


def report_document(cases: Sequence[LearnedCase]) -> dict[str, Any]:
    """Return the report as JSON values. The comparison of a single case is at the top level too, for scripts."""
    documents: list[dict[str, Any]] = [
        {
            "table": table_document(case.table),
            "rounds": rounds_document(case.rounds),
            "comparison": None if case.comparison is None else comparison_document(case.comparison),
            "rehearsal": None if case.rehearsal is None else rehearsal_document(case.rehearsal),
        }
        for case in cases
    ]
    comparison: dict[str, Any] = (documents[0]["comparison"] or {}) if len(documents) == 1 else {}
    return {**comparison, "format": FORMAT, "cases": documents}


def write_report(path: Path, cases: Sequence[LearnedCase], *, title: str) -> None:
    """Write the report to a file, all at once. Equal cases give equal bytes.

    Args:
        path: of the file.
        cases: one section each, in this order.
        title: of the page.

    Raises:
        OSError: the file cannot be written; what was there stays.
    """
    write_result(path, _render(cases, title).encode())


def _render(cases: Sequence[LearnedCase], title: str) -> str:
    environment = Environment(
        loader=PackageLoader("dolphin_search.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    views = [case_view(case, number_in_page=number) for number, case in enumerate(cases, start=1)]
    return environment.get_template("report.html").render(title=title, cases=views, colours=COLOURS)
