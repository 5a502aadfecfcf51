"""Write the tables of the results page from the measured cases, between its markers.

python benchmarks/paper/tables.py [--results FOLDER] [--page docs/results.md]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

# Beside this folder, where every benchmark that writes into the page finds it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from results_page import markdown, replaced

REPOSITORY = Path(__file__).resolve().parents[2]
Case = dict[str, Any]
Columns = dict[str, Callable[[Case], str]]
Table = Callable[[Sequence[Case]], str]

ROUNDS = (16, 26, 50, 80)


def mean(case: Case, policy: str, *keys: str) -> float | None:
    """Return a policy's figure, averaged over the seeds; None where the policy was left out."""
    values = []
    for seed in case["seeds"]:
        value = seed["policies"].get(policy)
        if value is None:
            return None
        for key in keys:
            value = value[key]
        values.append(value)
    return statistics.fmean(values)


def attained(case: Case, policy: str) -> str:
    """Return a policy's attainment in per cent."""
    value = mean(case, policy, "attainment")
    return "–" if value is None else f"{100 * value:.1f}"


def latencies(case: Case, policy: str) -> str:
    """Return P90 TTFT in seconds and P90 TPOT in milliseconds."""
    ttft_ms, tpot_ms = mean(case, policy, "ttft_ms", "p90"), mean(case, policy, "tpot_ms", "p90")
    return "–" if ttft_ms is None or tpot_ms is None else f"{ttft_ms / 1e3:.1f} / {tpot_ms:.1f}"


def change(case: Case, baseline: str) -> str:
    """Return how the learned table's P90 TTFT and TPOT differ from a baseline's, in per cent."""
    parts = []
    for latency in ("ttft_ms", "tpot_ms"):
        learned, other = mean(case, "learned", latency, "p90"), mean(case, baseline, latency, "p90")
        parts.append("–" if learned is None or other is None else f"{100 * (learned / other - 1):+.0f} %")
    return " / ".join(parts)


def lead(case: Case, policy: str) -> str:
    """Return the learned table's lead in points, and for how many seeds its interval excludes 0."""
    leads = [seed["policies"][policy]["lead_of_learned"] for seed in case["seeds"]]
    above = sum(entry["interval"][0] > 0 for entry in leads)
    below = sum(entry["interval"][1] < 0 for entry in leads)
    mark = f" ({above}+ {below}− of {len(leads)})"
    return f"{100 * statistics.fmean(entry['attainment'] for entry in leads):+.1f}{mark}"


def best_rule(case: Case) -> str:
    """Return the rule with the highest mean attainment."""
    rules = [name for name in case["seeds"][0]["policies"] if name not in ("learned", "exhaustive-best")]
    return max(rules, key=lambda name: mean(case, name, "attainment") or 0.0)


def lead_over_best_rule(case: Case) -> str:
    """Return the learned table's lead over the rule that is best in this case."""
    return lead(case, best_rule(case))


def rounds_to_settle(case: Case) -> str:
    """Return after how many rounds the search had its result, averaged over the seeds."""
    return f"{statistics.fmean(seed['rounds_to_settle'] for seed in case['seeds']):.0f}"


def rate(case: Case) -> str:
    """Return the first seed's requests a second."""
    return f"{case['seeds'][0]['problem']['rate_per_s']:.3g}"


def comparison(rules: Sequence[str], before: Columns, after: Columns) -> Table:
    """Return what writes a table with a row for each case: who attains what, and the learned table's latencies.

    Args:
        rules: whose attainment is shown beside the learned table's.
        before: columns before the latencies.
        after: columns after the comparison of latencies with Dynamo's rule.
    """
    columns: Columns = {
        "split": lambda case: case["split"],
        "case": lambda case: case["label"],
        "learned": lambda case: attained(case, "learned"),
        "best of 256": lambda case: attained(case, "exhaustive-best"),
        **{rule: partial(attained, policy=rule) for rule in rules},
        **before,
        "P90 TTFT s / TPOT ms": lambda case: latencies(case, "learned"),
        "vs dynamo-isl-bounding": lambda case: change(case, "dynamo-isl-bounding"),
        **after,
    }
    return lambda cases: markdown(list(columns), [[cell(case) for cell in columns.values()] for case in cases])


def regret(cases: Sequence[Case]) -> str:
    """Median and mean regret of the choice after some rounds."""
    rows = []
    for case in cases:
        for way, curves in case["curves"].items():
            arrivals, periods = way.split(" ", 1)
            at = [[curve[min(n, len(curve)) - 1] for curve in curves] for n in ROUNDS]
            medians = [f"{statistics.median(values):.1f} / {statistics.fmean(values):.1f}" for values in at]
            rows.append([case["split"], arrivals, periods, *medians])
    return markdown(["split", "arrivals", "periods a round", *(f"after {n} rounds" for n in ROUNDS)], rows)


RULES = ("always-remote", "dynamo-isl-bounding", "tuned-effective-length", "tuned-dynamo-isl-or-load", "tuned-cost")

headline = comparison(
    RULES,
    {"lead over best rule": lead_over_best_rule},
    {"vs dynamo-default": partial(change, baseline="dynamo-default")},
)
variants = comparison(
    [rule for rule in RULES if rule != "tuned-dynamo-isl-or-load"],
    {},
    {"rounds to settle": rounds_to_settle, "requests/s": rate},
)

GROUPS: dict[str, Table] = {
    "headline": headline,
    "ablation": variants,
    "pure": variants,
    "flip": variants,
    "sensitivity": variants,
    "regret": regret,
}


def main() -> int:
    """Replace what stands between the markers of each group."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--results", type=Path, default=REPOSITORY / "results" / "paper")
    parser.add_argument("--page", type=Path, default=REPOSITORY / "docs" / "results.md")
    arguments = parser.parse_args()
    page = arguments.page.read_text("utf-8")
    for group, render in GROUPS.items():
        files = sorted(arguments.results.glob(f"{group}-*.json"))
        if not files:
            print(f"{group}: nothing measured, left as it is", file=sys.stderr)
            continue
        cases = sorted((json.loads(file.read_text("utf-8")) for file in files), key=lambda case: case["split"])
        try:
            page = replaced(page, group, render(cases))
        except ValueError as error:
            print(f"{arguments.page}: {error}", file=sys.stderr)
            return 2
    arguments.page.write_text(page, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
