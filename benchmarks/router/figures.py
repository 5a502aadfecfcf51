"""Medians and ratios of the measurements, as rows, as a document, and held against the goals."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from runs import Run

OURS: Final = "ours"
BASE: Final = "vllm-router"
CEILING: Final = "direct"
FULL_CORE: Final = 0.95
"""From here on a core counts as busy all the time."""

QUIET_CORES: Final = 0.1
"""Up to here other processes hardly disturb."""

Measure = Callable[[dict[str, Any]], float]
Combine = Callable[[float, float], float]


class Figure(NamedTuple):
    """One quantity over the repetitions."""

    median: float
    low: float
    high: float


def answers_per_s(result: dict[str, Any]) -> float:
    """Return the rate of answers."""
    return float(result["answers_per_s"])


def cpu_us(result: dict[str, Any]) -> float:
    """Return the router's CPU time for an answer."""
    return float(result["router_cpu_us_per_answer"])


def rss_mib(result: dict[str, Any]) -> float:
    """Return the router's resident memory at the end."""
    return float(result["router_rss_mib"])


def latency_ms(percentile: str) -> Measure:
    """Return the measure of how long answers took."""
    return lambda result: float(result["latency_ms"][percentile])


def first_chunk_ms(percentile: str) -> Measure:
    """Return the measure of how long a stream's first chunk took."""
    return lambda result: float(result["first_chunk_ms"][percentile])


def cores(part: str) -> Measure:
    """Return the measure of how many cores the router, the harness or other processes used."""
    return lambda result: float(result[f"{part}_cores"])


def figure(runs: Sequence[Run], case: str, target: str, of: Measure) -> Figure | None:
    """Return a quantity's median and range; none where it was not measured."""
    return _over(_by_repetition(runs, case, target, of).values())


def beside(runs: Sequence[Run], case: str, target: str, base: str, of: Measure, how: Combine) -> Figure | None:
    """Return how a target compares with another in the same repetitions, so that a slow minute counts for both."""
    values, bases = _by_repetition(runs, case, target, of), _by_repetition(runs, case, base, of)
    return _over([how(values[place], bases[place]) for place in values.keys() & bases.keys()])


def ratio(value: float, base: float) -> float:
    """Return how many times the base a value is."""
    return value / base


def difference(value: float, base: float) -> float:
    """Return how far a value is above the base."""
    return value - base


def _by_repetition(runs: Sequence[Run], case: str, target: str, of: Measure) -> dict[int, float]:
    matching = [run for run in runs if (run.case, run.target) == (case, target) and not run.faults]
    try:
        return {run.repetition: of(run.result) for run in matching}
    except TypeError:  # null: there is no router, or no stream
        return {}


def _over(values: Any) -> Figure | None:
    ordered = sorted(values)
    return Figure(statistics.median(ordered), ordered[0], ordered[-1]) if ordered else None


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What our router should reach."""

    what: str
    reached: Figure | None
    """None when it was not measured."""
    limit: float
    at_least: bool

    @property
    def is_met(self) -> bool | None:
        """Whether the median reaches the limit."""
        if self.reached is None:
            return None
        return self.reached.median >= self.limit if self.at_least else self.reached.median <= self.limit

    def __str__(self) -> str:
        limit = f"{'at least' if self.at_least else 'at most'} {self.limit:g}"
        if self.reached is None:
            return f"{self.what}: {limit}; not measured"
        said = f"{self.reached.median:.3g} ({self.reached.low:.3g}..{self.reached.high:.3g})"
        return f"{self.what}: {limit}; {said}, {'met' if self.is_met else 'MISSED'}"


def goals(runs: Sequence[Run]) -> list[Goal]:
    """Return the goals with what was reached."""

    def times_base(case: str, of: Measure) -> Figure | None:
        return beside(runs, case, OURS, BASE, of, ratio)

    rates = (("unary", 2.0), ("stream", 1.5), ("prompt-32k", 1.0), ("prompt-220k", 1.0))
    p50, p99 = latency_ms("p50"), latency_ms("p99")
    return [
        *(
            Goal(
                what=f"{case}: × {BASE}'s answers/s",
                reached=times_base(case, answers_per_s),
                limit=limit,
                at_least=True,
            )
            for case, limit in rates
        ),
        Goal(what=f"paced: × {BASE}'s CPU", reached=times_base("paced", cpu_us), limit=0.7, at_least=False),
        Goal(
            what="unary-1: added p50, ms",
            reached=beside(runs, "unary-1", OURS, CEILING, p50, difference),
            limit=0.25,
            at_least=False,
        ),
        Goal(what=f"unary-1: × {BASE}'s p99", reached=times_base("unary-1", p99), limit=1.0, at_least=False),
    ]


HEADER: Final = (
    "case",
    "router",
    "answers/s (min..max)",
    f"× {BASE}",
    "p50 / p99 ms",
    "added p50 ms",
    "first chunk p50 / p99 ms",
    "CPU µs/answer",
    f"× {BASE}",
    "RSS MiB",
    "cores: router / harness / others",
)


def rows(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """Return a row for each case and target, to go below :data:`HEADER`."""
    pairs = dict.fromkeys((run.case, run.target) for run in runs)
    order = {case: place for place, case in enumerate(dict.fromkeys(case for case, _ in pairs))}
    return [_row(runs, case, target) for case, target in sorted(pairs, key=lambda pair: order[pair[0]])]


def _row(runs: Sequence[Run], case: str, target: str) -> tuple[str, ...]:
    def median(of: Measure, digits: int) -> str:
        found = figure(runs, case, target, of)
        return "–" if found is None else f"{found.median:,.{digits}f}"

    def both(of: Callable[[str], Measure]) -> str:
        text = f"{median(of('p50'), 2)} / {median(of('p99'), 2)}"
        return "–" if text == "– / –" else text

    def times(of: Measure) -> str:
        found = beside(runs, case, target, BASE, of, ratio)
        return "–" if found is None else f"{found.median:.2f}"

    rate = figure(runs, case, target, answers_per_s)
    added = beside(runs, case, target, CEILING, latency_ms("p50"), difference) if target != CEILING else None
    harness = figure(runs, case, target, cores("harness"))
    full = "!" if harness is not None and harness.median >= FULL_CORE and target != CEILING else ""
    return (
        case,
        target,
        "failed" if rate is None else f"{rate.median:,.0f} ({rate.low:,.0f}..{rate.high:,.0f})",
        times(answers_per_s),
        both(latency_ms),
        "–" if added is None else f"{added.median:.2f}",
        both(first_chunk_ms),
        median(cpu_us, 0),
        times(cpu_us),
        median(rss_mib, 0),
        f"{median(cores('router'), 2)} / {median(cores('harness'), 2)}{full} / {median(cores('other'), 2)}",
    )


def disturbance(runs: Sequence[Run]) -> str:
    """Return how much other processes disturbed the measurements."""
    others = [run.result["other_cores"] for run in runs if not run.faults]
    if not others:
        return "nothing was measured"
    much = "; rates and latencies of so busy a machine mean little" if statistics.median(others) > QUIET_CORES else ""
    return f"other processes used {statistics.median(others):.2f} cores ({min(others):.2f}..{max(others):.2f}){much}"


def as_text(runs: Sequence[Run]) -> str:
    """Return the rows in columns, and the goals."""
    table = [HEADER, *rows(runs)]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    mark = "! the harness's core was full: the router could do more"
    return "\n".join([*lines, mark, disturbance(runs), "", *(str(goal) for goal in goals(runs))])


def as_document(header: dict[str, Any], runs: Sequence[Run]) -> dict[str, Any]:
    """Return the medians and ranges for programs."""
    measures: dict[str, Measure] = {
        "answers_per_s": answers_per_s,
        "p50_ms": latency_ms("p50"),
        "p99_ms": latency_ms("p99"),
        "first_chunk_p50_ms": first_chunk_ms("p50"),
        "first_chunk_p99_ms": first_chunk_ms("p99"),
        "cpu_us_per_answer": cpu_us,
        "rss_mib": rss_mib,
        "router_cores": cores("router"),
        "harness_cores": cores("harness"),
        "other_cores": cores("other"),
    }
    found: dict[str, dict[str, Any]] = {}
    for case, target in dict.fromkeys((run.case, run.target) for run in runs):
        values = {name: figure(runs, case, target, of) for name, of in measures.items()}
        found.setdefault(case, {})[target] = {
            name: None if value is None else value._asdict() for name, value in values.items()
        }
    return {
        **header,
        "cases": found,
        "goals": [
            {
                "what": goal.what,
                "limit": goal.limit,
                "reached": None if goal.reached is None else goal.reached._asdict(),
                "is_met": goal.is_met,
            }
            for goal in goals(runs)
        ],
        "faults": {run.name: run.faults for run in runs if run.faults},
    }
