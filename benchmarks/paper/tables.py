"""Write the tables of the results page from the measured cases, between its markers.

python benchmarks/paper/tables.py [--results FOLDER] [--page docs/results.md]
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
Case = dict[str, Any]

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


def headline(cases: Sequence[Case]) -> str:
    """The learned table beside the rules."""
    rules = ("always-remote", "dynamo-isl-bounding", "tuned-effective-length", "tuned-dynamo-isl-or-load", "tuned-cost")
    rows = [
        [
            case["split"],
            case["label"],
            attained(case, "learned"),
            attained(case, "exhaustive-best"),
            *(attained(case, rule) for rule in rules),
            lead(case, best_rule(case)),
            latencies(case, "learned"),
            change(case, "dynamo-isl-bounding"),
            change(case, "dynamo-default"),
        ]
        for case in cases
    ]
    header = [
        "split",
        "case",
        "learned",
        "best of 256",
        *rules,
        "lead over best rule",
        "P90 TTFT s / TPOT ms",
        "vs dynamo-isl-bounding",
        "vs dynamo-default",
    ]
    return markdown(header, rows)


def variants(cases: Sequence[Case]) -> str:
    """One row a variant, with the search's course."""
    rows = [
        [
            case["split"],
            case["label"],
            attained(case, "learned"),
            attained(case, "exhaustive-best"),
            attained(case, "always-remote"),
            attained(case, "dynamo-isl-bounding"),
            attained(case, "tuned-effective-length"),
            attained(case, "tuned-cost"),
            latencies(case, "learned"),
            change(case, "dynamo-isl-bounding"),
            f"{statistics.fmean(seed['rounds_to_settle'] for seed in case['seeds']):.0f}",
            f"{case['seeds'][0]['problem']['rate_per_s']:.3g}",
        ]
        for case in cases
    ]
    header = [
        "split",
        "case",
        "learned",
        "best of 256",
        "always-remote",
        "dynamo-isl-bounding",
        "tuned-effective-length",
        "tuned-cost",
        "P90 TTFT s / TPOT ms",
        "vs dynamo-isl-bounding",
        "rounds to settle",
        "requests/s",
    ]
    return markdown(header, rows)


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


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


GROUPS: dict[str, Callable[[Sequence[Case]], str]] = {
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
        block = f"<!-- table: {group} -->\n\n{render(cases)}\n\n<!-- end of table -->"
        parts = re.split(rf"<!-- table: {group} -->.*?<!-- end of table -->", page, flags=re.DOTALL)
        page = block.join(parts)
        if len(parts) != 2:
            print(f"{arguments.page}: the markers of table {group} are not there exactly once", file=sys.stderr)
            return 2
    arguments.page.write_text(page, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
