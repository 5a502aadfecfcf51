"""What the page shows of a case, as text and figures for the template."""

from __future__ import annotations

from typing import Any

from dolphin_router.cli.wording import slo_text
from dolphin_router.contract import Cluster, Provenance, Reward, RoutingTable
from dolphin_router.features import features_in_tokens
from dolphin_router.gain import measured_gain
from dolphin_search.comparison import Percentiles, PolicyResult
from dolphin_search.comparison_run import ComparisonRun
from dolphin_search.report.case import LearnedCase
from dolphin_search.report.plots.attainment import plot_attainments, plot_leads
from dolphin_search.report.plots.clusters import plot_clusters
from dolphin_search.report.plots.latencies import plot_distributions, shown_policies
from dolphin_search.report.plots.limits import Limits
from dolphin_search.report.plots.palette import ACTIONS, style_of
from dolphin_search.report.plots.plane import plot_plane
from dolphin_search.report.plots.rounds import plot_rounds
from dolphin_search.report.rehearsal import rehearsal_view
from dolphin_search.report.summary import ordered
from dolphin_search.report.verdict import verdict
from dolphin_search.report.wording import (
    NOTHING,
    attainment_text,
    goodput_text,
    lead_text,
    number,
    per_cent,
    seconds,
    signed,
)
from dolphin_search.samplers import REWARDS, RewardName

View = dict[str, Any]

_ARRIVALS = {"common": "common: the same in all rounds", "fresh": "fresh: each round its own"}

_ENVIRONMENTS = {
    "simulated": "All of it is simulated; no request was sent to a real worker.",
    "live": "The table was measured live: its requests were sent to real workers.",
}

_DASHES = {"-": "none", "--": "5 3", "-.": "6 2 1.5 2", ":": "1.5 2"}


def case_view(case: LearnedCase, *, number_in_page: int) -> View:
    """Return all that the template shows of a case."""
    table = case.table
    name = f"case-{number_in_page}"
    return {
        "id": name,
        "split": str(table.split),
        "workload": table.provenance.workload,
        "rate": f"{case.preparation.source.rate_per_s:.3g}",
        "slo": slo_text(table.slo),
        "digest": table.digest,
        "clusters": [_cluster_view(table, index) for index in range(len(table.decider.clusters))],
        "clusters_figures": plot_clusters(f"{name}-clusters", table, case.preparation.features),
        "history_requests": f"{len(case.preparation.features):,}",
        "reward": table.provenance.reward,
        "rounds_figure": plot_rounds(
            f"{name}-rounds", case.rounds, scan_rounds=_scan_rounds(table), reward=_reward_name(table.provenance)
        ),
        "comparison": None if case.comparison is None else _comparison_view(name, case.comparison),
        "rehearsal": None if case.rehearsal is None else rehearsal_view(case.rehearsal),
        "environment": _ENVIRONMENTS.get(
            table.provenance.environment, f"The table was measured in the environment “{table.provenance.environment}”."
        ),
        "provenance": _provenance(case),
        "profile": case.preparation.cluster.profile.model_dump(mode="json"),
    }


def _scan_rounds(table: RoutingTable) -> int:
    return 2 * len(table.decider.clusters) if table.provenance.sampler == "scan-then-epsilon-greedy" else 0


def _reward_name(provenance: Provenance) -> RewardName:
    for name in REWARDS:
        if name == provenance.reward:
            return name
    raise ValueError(f"the table was learned for the reward {provenance.reward!r}; known are {', '.join(REWARDS)}")


def _cluster_view(table: RoutingTable, index: int) -> View:
    cluster: Cluster = table.decider.clusters[index]
    transform = table.decider.transform
    gain = measured_gain(cluster)
    return {
        "number": index,
        "centre": [number(value, 0) for value in features_in_tokens(cluster.centre, transform.mean, transform.scale)],
        "share": per_cent(cluster.share),
        "action": cluster.action,
        "colour": ACTIONS[cluster.action],
        "local": _reward_text(cluster.rewards.local),
        "remote": _reward_text(cluster.rewards.remote),
        "gain": NOTHING if gain is None else _with_error(signed(gain.mean, 3), gain.standard_error),
        "is_in_noise": gain is None or gain.within_noise,
    }


def _reward_text(reward: Reward | None) -> str:
    return NOTHING if reward is None else _with_error(number(reward.mean, 3), reward.standard_error)


def _with_error(value: str, standard_error: float | None) -> str:
    return f"{value} ± {'?' if standard_error is None else f'{standard_error:.3f}'}"


def _comparison_view(name: str, run: ComparisonRun) -> View:
    limits = Limits.of(run)
    return {
        "verdict": verdict(run),
        "learned": _attainment(run, "learned"),
        "best_rule": run.best_rule,
        "best_rule_attainment": _attainment(run, run.best_rule),
        "lead": NOTHING if run.best_rule is None else lead_text(run, run.best_rule),
        "requests": f"{next(iter(run.results.values())).requests:,}",
        "test_periods": run.test_episodes,
        "attainment_figures": [
            figure for figure in (plot_attainments(f"{name}-attained", run), plot_leads(f"{name}-leads", run)) if figure
        ],
        "distribution_keys": [_key(policy) for policy in shown_policies(run)],
        "distribution_figures": plot_distributions(f"{name}-latencies", run),
        "plane_figure": plot_plane(f"{name}-plane", run),
        "limits_are_separate": run.slo.kind == "both",
        "median_prompt": f"{limits.median_prompt_tokens:,.0f}" if run.slo.ttft_us_per_prompt_token else None,
        "policies": [_policy_view(run, policy, result) for policy, result in ordered(run)],
    }


def _attainment(run: ComparisonRun, name: str | None) -> str:
    return attainment_text(run.results[name]) if name in run.results else NOTHING


def _key(policy: str) -> View:
    """Return how a policy's line is drawn, for the legend."""
    style = style_of(policy)
    is_learned = policy == "learned"
    return {"name": policy, "colour": style.colour, "dash": _DASHES[style.line], "width": 4 if is_learned else 2}


def _policy_view(run: ComparisonRun, name: str, result: PolicyResult) -> View:
    return {
        **_key(name),
        "description": result.policy.describe(),
        "is_best_rule": name == run.best_rule,
        "attainment": attainment_text(result),
        "lead": lead_text(run, name),
        "end_to_end": number(100 * result.end_to_end_attainment, 1),
        "ttft": [seconds(value) for value in _values(result.ttft_ms)],
        "tpot": [number(value, 1) for value in _values(result.tpot_ms)],
        "goodput": goodput_text(run, name),
        "remote": per_cent(result.remote_share, 0),
        "reused": per_cent(result.reused_share, 0),
        "preemptions": f"{result.preemptions:,}",
    }


def _values(percentiles: Percentiles) -> tuple[float, float, float]:
    return percentiles.p50, percentiles.p90, percentiles.p99


def _provenance(case: LearnedCase) -> list[tuple[str, str]]:
    """Return names and values of what is needed to learn and compare again."""
    table, preparation, run = case.table, case.preparation, case.comparison
    provenance, window, clustering = table.provenance, preparation.source.window, table.decider.clustering
    facts = [
        ("table", table.digest),
        ("split", f"{table.split}: {table.split.prefill} prefill and {table.split.decode} decode workers"),
        ("hardware profile", preparation.cluster.profile.name),
        ("workload", f"{provenance.workload}, history {preparation.workload_digest}"),
        ("arrival rate", f"{preparation.source.rate_per_s!r} requests/s"),
        (
            "period",
            f"{window.period_s:g} s scored after {window.settle_s:g} s of settling, arrivals for {window.tail_s:g} s "
            "more",
        ),
        ("promise (SLO)", slo_text(table.slo)),
        (
            "clusters",
            f"{len(table.decider.clusters)} by {clustering.kind}, the best of "
            f"{provenance.clustering_initialisations} initialisations, from {len(preparation.features):,} requests",
        ),
        ("search", _search_text(provenance)),
        ("sampler’s settings", _settings_text(provenance)),
        ("arrivals of the rounds", _ARRIVALS.get(provenance.arrivals or "", NOTHING)),
        ("reward", provenance.reward),
        ("expected answer lengths", _lengths_text(case)),
        ("seed", str(preparation.source.seed)),
        ("software", f"dolphin-routing {table.software_version}"),
    ]
    if run is not None:
        periods = f"{run.training_episodes} for tuning the rules, {run.test_episodes} others to measure on"
        facts.append(("periods of the comparison", periods))
    return facts


def _settings_text(provenance: Provenance) -> str:
    settings = (f"{name.replace('_', ' ')} {value:g}" for name, value in provenance.sampler_settings.items())
    return ", ".join(settings) or NOTHING


def _search_text(provenance: Provenance) -> str:
    periods = "a period" if provenance.periods_per_round == 1 else f"{provenance.periods_per_round} periods"
    return f"{provenance.sampler}, {provenance.rounds} rounds of {periods}, seed {provenance.seed}"


def _lengths_text(case: LearnedCase) -> str:
    model, kind = case.preparation.output_model, case.preparation.predictor_kind
    if kind == "trained":
        return f"trained on {model.samples:,} requests, {per_cent(model.accuracy, 0)} in the right class"
    if kind == "simulated":
        accuracy = case.table.provenance.expected_lengths_accuracy
        share = "" if accuracy is None else f", {per_cent(accuracy, 0)} in the right class as stated"
        return f"a simulated classifier{share}"
    return {"perfect": "known without error", "none": "none"}[kind]
