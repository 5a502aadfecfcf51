"""The comparison in two sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dolphin_search.bootstrap import Interval
from dolphin_search.comparison_run import ComparisonRun
from dolphin_search.report.wording import interval_text, number, per_cent

Judgement = Literal["better", "level", "worse"]


@dataclass(frozen=True)
class Verdict:
    """Whether the learned table is worth having, against the best rule."""

    judgement: Judgement
    """By the interval of the lead: above 0, around it, or below."""
    headline: str
    """The judgement in a few words."""
    text: str
    """Two sentences; one where not all tables were tried."""


def verdict(run: ComparisonRun) -> Verdict | None:
    """Say whether the learned table beats the best rule, and how far it is from the best table of its kind.

    Returns:
        None where there is no learned table or no rule to hold it against.
    """
    learned = run.results.get("learned")
    if learned is None or run.best_rule is None:
        return None
    rule = run.results[run.best_rule]
    lead, interval = learned.lead_over(rule)
    judgement: Judgement = "level" if interval[0] <= 0 <= interval[1] else ("better" if lead > 0 else "worse")
    rule_name = rule.policy.describe()
    conclusions = {
        "better": f"so the table is better than every rule: it {_gap(lead, interval)}",
        "level": f"so the rule is as good as far as these requests can tell: the table {_gap(lead, interval)}",
        "worse": f"so the rule is better: the table {_gap(lead, interval)}",
    }
    text = (
        f"The learned table keeps the promise for {per_cent(learned.attainment)} of requests (95 % interval "
        f"{interval_text(learned.attainment_interval)} %), the best rule, {rule_name}, for "
        f"{per_cent(rule.attainment)}, {conclusions[judgement]}."
    )
    headlines = {
        "better": "The learned table is better than every rule",
        "level": f"The rule {run.best_rule} is as good",
        "worse": f"The rule {run.best_rule} is better",
    }
    return Verdict(judgement, headlines[judgement], f"{text} {_regret_sentence(run)}".strip())


def _regret_sentence(run: ComparisonRun) -> str:
    best = run.results.get("exhaustive-best")
    if best is None:
        return ""
    regret, interval = best.lead_over(run.results["learned"])
    tables = (
        f"Of all tables over these clusters the best on the tuning periods keeps it for {per_cent(best.attainment)}"
    )
    if interval[0] > 0:
        return f"{tables}: the table that was found {_gap(-regret, _mirrored(interval))}, its regret."
    if interval[1] < 0:
        return f"{tables}, and the table that was found does better: it {_gap(-regret, _mirrored(interval))}."
    return f"{tables}: no regret shows, as the table that was found {_gap(-regret, _mirrored(interval))}."


def _gap(lead: float, interval: Interval) -> str:
    """Return how far the table is ahead or behind, as a verb with its object."""
    if lead == 0.0 and interval == (0.0, 0.0):
        return "attains exactly the same"
    # What is shown as 0.0 points is no trailing.
    leads = round(100 * lead, 1) >= 0
    low, high = interval if leads else _mirrored(interval)
    size, least, most = (number(100 * value, 1) for value in (abs(lead), low, high))
    return f"{'leads' if leads else 'trails'} by {size} points (95 % interval {least} to {most})"


def _mirrored(interval: Interval) -> Interval:
    return -interval[1], -interval[0]
