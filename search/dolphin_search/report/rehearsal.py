"""What the page shows of a rehearsal."""

from __future__ import annotations

from typing import Any

from dolphin_search.replay.rehearsal import Rehearsal
from dolphin_search.replay.result import Attained
from dolphin_search.replay.wording import agreement_text, lag_text
from dolphin_search.report.wording import interval_text, number, per_cent, seconds


def rehearsal_view(rehearsal: Rehearsal) -> dict[str, Any]:
    """Return all that the template shows of a rehearsal."""
    measured = rehearsal.measured
    return {
        "requests": f"{measured.requests:,}",
        "time_scale": f"{rehearsal.plan.time_scale:g}",
        "judgement": _sentence(agreement_text(rehearsal)),
        "rows": [_row("predicted", rehearsal.predicted), _row("measured", measured)],
        "notes": " ".join(_notes(rehearsal)),
    }


def _row(name: str, attained: Attained) -> dict[str, Any]:
    ttft, tpot = attained.ttft_ms, attained.tpot_ms
    return {
        "name": name,
        "attainment": f"{100 * attained.attainment:.1f}"
        + ("" if attained.interval is None else f" [{interval_text(attained.interval)}]"),
        "ttft": [seconds(value) for value in (ttft.p50, ttft.p90, ttft.p99)],
        "tpot": [number(value, 1) for value in (tpot.p50, tpot.p90, tpot.p99)],
    }


def _notes(rehearsal: Rehearsal) -> list[str]:
    result = rehearsal.result
    missed = len(result.scored) - result.count("whole")
    return [
        f"{per_cent(rehearsal.other_decisions)} of the requests took another path than in the simulation, and "
        f"{per_cent(rehearsal.other_verdicts)} kept the promise in one of the two only.",
        f"{missed} requests failed or did not end, which counts as missed." if missed else "No request failed.",
        f"Requests were {lag_text(result)}." if not result.is_void else "",
        f"All times are emulated ones: what HTTP adds on this machine counts {rehearsal.plan.time_scale:g} times, so "
        f"the prediction is over {rehearsal.plan.simulations} simulations in which requests are late by up to "
        f"{number(1e3 * rehearsal.plan.most_delay_s * rehearsal.plan.time_scale, 0)} ms at random; in brackets the "
        "lowest and the highest of them, and for the measurement its 95 % interval.",
        f"Without delays the simulation attains {per_cent(rehearsal.undelayed_attainment)}. Its router knows of queues "
        "what the real one does: the prompts that it has sent and that were not answered.",
        "Prompts were token ids with the workload\u2019s prefixes, answers of exact length by a limit, which the "
        "table\u2019s output model sees in both; with the limits that the workload\u2019s clients state, and without "
        f"delays, the simulation attains {per_cent(rehearsal.stated_attainment)}.",
    ]


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
