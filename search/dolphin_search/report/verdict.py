"""The comparison in two sentences."""

from __future__ import annotations

from dolphin_search.comparison_run import ComparisonRun
from dolphin_search.report.summary import attainment_text


def verdict(run: ComparisonRun) -> str:
    """Say whether the learned table is worth having here, and how far it is from the best table of its kind."""
    learned = run.results.get("learned")
    if learned is None or run.best_rule is None:
        return "Nothing to compare."
    rule = run.results[run.best_rule]
    lead, (low, high) = learned.lead_over(rule)
    if low > 0:
        judgement = f"better than the best rule, by {100 * lead:.1f} points [{100 * low:.1f}, {100 * high:.1f}]"
    elif high < 0:
        judgement = f"worse than the best rule, by {-100 * lead:.1f} points [{-100 * high:.1f}, {-100 * low:.1f}]"
    else:
        judgement = f"level with the best rule ({100 * lead:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}])"
    sentence = (
        f"The learned table attains {attainment_text(learned)} % and is {judgement}: {rule.policy.describe()} attains "
        f"{attainment_text(rule)} %."
    )
    if "exhaustive-best" not in run.results:
        return sentence
    regret, (least, most) = run.results["exhaustive-best"].lead_over(learned)
    return (
        f"{sentence} The best of all tables over these clusters, chosen on other periods, attains {100 * regret:+.1f} "
        f"points more [{100 * least:+.1f}, {100 * most:+.1f}]."
    )
