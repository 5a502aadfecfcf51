"""The page stands by itself, shows everything, and is the same for equal data."""

from __future__ import annotations

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from dolphin_search.comparison import Percentiles
from dolphin_search.comparison_run import ComparisonRun
from dolphin_search.report.case import LearnedCase
from dolphin_search.report.html import write_report
from dolphin_search.report.plots.palette import COLOURS

VOID = {"meta", "br"}


class Page(HTMLParser):
    """Reads a page; fails where elements are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.styles = ""
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.styles += data
        else:
            self.text += data

    @property
    def ids(self) -> Counter[str | None]:
        return Counter(attributes["id"] for _, attributes in self.elements if "id" in attributes)


def page_of(path: Path, *cases: LearnedCase, title: str = "Report") -> Page:
    write_report(path, cases, title=title)
    return Page(path.read_text("utf-8"))


def test_the_page_refers_to_nothing_outside_itself(case: LearnedCase, tmp_path: Path) -> None:
    page = page_of(tmp_path / "report.html", case, case)
    text = (tmp_path / "report.html").read_text("utf-8")
    assert not re.search(r"https?:|//\w|@import", text)
    assert {tag for tag, _ in page.elements} & {"script", "link", "img", "iframe", "image", "object"} == set()
    targets = re.findall(r"url\(([^)]*)\)", text)
    for _, attributes in page.elements:
        assert "src" not in attributes
        targets += [value for name, value in attributes.items() if name in ("href", "xlink:href")]
    assert targets
    assert {str(target) for target in targets} <= {f"#{name}" for name in page.ids}


def test_ids_are_unique_and_colours_are_those_of_the_palette(case: LearnedCase, tmp_path: Path) -> None:
    page = page_of(tmp_path / "report.html", case, case)
    assert page.ids.most_common(1)[0][1] == 1
    drawn = [attributes.get("style") or "" for tag, attributes in page.elements]
    assert not any(re.search(r"#[0-9a-f]{6}", style) for style in drawn)
    for name, colour in COLOURS.items():
        assert page.styles.count(f"--{name}: {colour.light};") == 1
        assert page.styles.count(f"--{name}: {colour.dark};") == 1


def test_every_policy_and_cluster_is_named_and_every_figure_described(case: LearnedCase, tmp_path: Path) -> None:
    assert case.comparison is not None
    page = page_of(tmp_path / "report.html", case)
    headers = re.findall(r'<th scope="row">(.*?)</th>', (tmp_path / "report.html").read_text("utf-8"), re.DOTALL)
    for result in case.comparison.results.values():
        assert any(result.policy.describe() in header for header in headers)
    assert {str(number) for number in range(len(case.table.decider.clusters))} <= set(headers)
    figures = [attributes for tag, attributes in page.elements if tag == "svg" and "role" in attributes]
    assert len(figures) == 9
    assert len({attributes["aria-label"] for attributes in figures}) == 9
    assert case.table.digest in page.text
    assert case.preparation.cluster.profile.origin in page.text
    assert "All of it is simulated" in page.text


def test_equal_cases_give_equal_bytes_also_side_by_side(case: LearnedCase, tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    paths = [tmp_path / str(number) for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda path: write_report(path, [case], title="Report"), paths))
    assert len({path.read_bytes() for path in paths}) == 1
    assert dict(matplotlib.rcParams) == before


def test_names_with_html_in_them_are_shown_as_text(case: LearnedCase, tmp_path: Path) -> None:
    name = "<script>alert('x')</script> & \"more\""
    provenance = case.table.provenance.model_copy(update={"workload": name})
    renamed = replace(case, table=case.table.model_copy(update={"provenance": provenance}))
    page = page_of(tmp_path / "report.html", renamed, renamed, title=f"Report {name}")
    assert page.text.count(name) >= 5
    assert "script" not in {tag for tag, _ in page.elements}


def test_a_case_without_comparison_shows_its_table(case: LearnedCase, tmp_path: Path) -> None:
    page = page_of(tmp_path / "report.html", replace(case, comparison=None))
    assert "was not compared" in page.text
    assert len([tag for tag, attributes in page.elements if tag == "svg" and "role" in attributes]) == 4


@pytest.mark.parametrize("kind", ["both", "end-to-end"])
def test_requests_without_an_answer_do_not_spoil_the_page(case: LearnedCase, tmp_path: Path, kind: str) -> None:
    page = page_of(tmp_path / "report.html", replace(case, comparison=without_answers(case.comparison, kind)))
    assert "∞" in page.text
    assert "nan" not in page.text.lower().split()


def without_answers(run: ComparisonRun | None, kind: str) -> ComparisonRun:
    assert run is not None
    lost = run.results["tuned-cost"]
    outcomes = tuple(
        replace(part, first_token_s=np.full(len(part), np.inf), finish_s=np.full(len(part), np.inf))
        for part in lost.outcomes
    )
    never = Percentiles(np.inf, np.inf, np.inf)
    slo = run.slo.model_copy(update={"kind": kind, "ttft_us_per_prompt_token": 100.0})
    results = {**run.results, "tuned-cost": replace(lost, outcomes=outcomes, ttft_ms=never, tpot_ms=never)}
    return replace(run, slo=slo, results=results)


def test_a_page_that_cannot_be_written_leaves_what_was_there(case: LearnedCase, tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(OSError, match="report"):
        write_report(tmp_path / "report.html", [case], title="Report")
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_the_page_says_how_the_table_was_made(case: LearnedCase, tmp_path: Path) -> None:
    text = page_of(tmp_path / "report.html", case).text
    assert "epsilon 0.6, epsilon decay 0.98, least epsilon 0.2" in text
    assert "the best of 10 initialisations" in text
    assert "common: the same in all rounds" in text
    assert f"{100 * case.preparation.output_model.accuracy:.0f} % in the right class" in text


def test_the_page_calls_simulated_what_is_simulated(case: LearnedCase, tmp_path: Path) -> None:
    provenance = case.table.provenance.model_copy(update={"environment": "live"})
    live = replace(case, table=case.table.model_copy(update={"provenance": provenance}))
    text = page_of(tmp_path / "report.html", live).text
    assert "simulated;" not in text
    assert "sent to real workers" in text
