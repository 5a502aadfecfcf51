"""The report: one HTML file that needs no network, and the same as JSON."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, select_autoescape
from markupsafe import Markup

from dolphin_router.contract import Cluster, Reward, RoutingTable
from dolphin_router.features import features_in_tokens
from dolphin_router.gain import measured_gain
from dolphin_search.comparison_run import ComparisonRun
from dolphin_search.report.case import LearnedCase
from dolphin_search.report.document import comparison_document, rounds_document, table_document
from dolphin_search.report.plots.clusters import plot_clusters
from dolphin_search.report.plots.latencies import plot_distributions, plot_plane
from dolphin_search.report.plots.rounds import plot_rounds
from dolphin_search.report.summary import attainment_text, goodput_text, lead_text, ordered
from dolphin_search.report.verdict import verdict

FORMAT = "dolphinrouting.dev/report/v1"


def report_document(cases: Sequence[LearnedCase]) -> dict[str, Any]:
    """Return the report as JSON values. The comparison of a single case is at the top level too, for scripts."""
    documents: list[dict[str, Any]] = [
        {
            "table": table_document(case.table),
            "rounds": rounds_document(case.rounds),
            "comparison": None if case.comparison is None else comparison_document(case.comparison),
        }
        for case in cases
    ]
    comparison: dict[str, Any] = (documents[0]["comparison"] or {}) if len(documents) == 1 else {}
    return {**comparison, "format": FORMAT, "cases": documents}


def write_report(path: Path, cases: Sequence[LearnedCase], *, title: str) -> None:
    """Write the report to a file, all at once. Equal cases give equal bytes.

    Raises:
        OSError: the file cannot be written; what was there stays.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        draft.write_text(_render(cases, title), "utf-8")
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _render(cases: Sequence[LearnedCase], title: str) -> str:
    environment = Environment(autoescape=select_autoescape(default=True), undefined=StrictUndefined)
    template = environment.from_string((files("dolphin_search.report") / "template.html").read_text("utf-8"))
    return template.render(title=title, cases=[_case_view(case) for case in cases])


def _case_view(case: LearnedCase) -> dict[str, Any]:
    provenance = case.table.provenance
    scan_rounds = 2 * len(case.table.decider.clusters) if provenance.sampler.startswith("scan") else 0
    return {
        "table": case.table,
        "slo": slo_in_words(case.table),
        "origin": case.preparation.cluster.profile.origin,
        "clusters": [_cluster_view(case.table, number) for number in range(len(case.table.decider.clusters))],
        "clusters_plot": Markup(plot_clusters(case.table, case.preparation.features)),
        "rounds_plot": Markup(plot_rounds(case.rounds, scan_rounds=scan_rounds)),
        "comparison": None if case.comparison is None else _comparison_view(case.comparison),
    }


def slo_in_words(table: RoutingTable) -> str:
    """Return the table's promise as a sentence part."""
    slo = table.slo
    growth = f" + {slo.ttft_us_per_prompt_token / 1e3:g} ms a prompt token" if slo.ttft_us_per_prompt_token else ""
    limits = f"first token within {slo.ttft_ms / 1e3:g} s{growth}", f"{slo.tpot_ms:g} ms for each later one"
    return f"{limits[0]}, and {limits[1]}" if slo.kind == "both" else f"end to end: {limits[0]} plus {limits[1]}"


def _cluster_view(table: RoutingTable, number: int) -> dict[str, Any]:
    cluster: Cluster = table.decider.clusters[number]
    transform = table.decider.transform
    gain = measured_gain(cluster)
    return {
        "number": number,
        "centre": [f"{value:,.0f}" for value in features_in_tokens(cluster.centre, transform.mean, transform.scale)],
        "share": f"{100 * cluster.share:.1f} %",
        "action": cluster.action,
        "local": _reward_text(cluster.rewards.local),
        "remote": _reward_text(cluster.rewards.remote),
        "gain": "–" if gain is None else f"{gain.mean:+.3f}",
    }


def _reward_text(reward: Reward | None) -> str:
    if reward is None:
        return "–"
    error = "" if reward.standard_error is None else f" ± {reward.standard_error:.3f}"
    return f"{reward.mean:.3f}{error}"


def _comparison_view(run: ComparisonRun) -> dict[str, Any]:
    return {
        "verdict": verdict(run),
        "episodes": run.test_episodes,
        "distributions": Markup(plot_distributions(run)),
        "plane": Markup(plot_plane(run)),
        "policies": [
            {
                "name": name,
                "description": result.policy.describe(),
                "is_best_rule": name == run.best_rule,
                "attainment": attainment_text(result),
                "end_to_end": f"{100 * result.end_to_end_attainment:.1f}",
                "ttft": [f"{value / 1e3:.2f}" for value in vars(result.ttft_ms).values()],
                "tpot": [f"{value:.1f}" for value in vars(result.tpot_ms).values()],
                "goodput": goodput_text(run, name),
                "remote": f"{100 * result.remote_share:.0f} %",
                "reused": f"{100 * result.reused_share:.0f} %",
                "preemptions": result.preemptions,
                "lead": lead_text(run, name),
            }
            for name, result in ordered(run)
        ],
    }
