"""Say what a table holds, in words and token counts."""

from __future__ import annotations

import argparse
import json
from typing import Any

from dolphin_router.contract import Cluster, Reward, RoutingTable, load_table
from dolphin_router.features import FEATURE_NAMES, features_in_tokens
from dolphin_router.gain import measured_gain

from .wording import NOTHING, clustering_text, columns, facts, gain_text, slo_text, tokens, uncertain

NAME = "show"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", help="the routing table")
    parser.add_argument("--json", action="store_true", help="print one JSON object, centres in tokens")


def run(arguments: argparse.Namespace) -> int:
    """Print the table."""
    table = load_table(arguments.file)
    if arguments.json:
        print(json.dumps(as_json(table), indent=2))
        return 0
    sections = [_heading(arguments.file, table), clusters_text(table), _output_model(table), _provenance(table)]
    print("\n\n".join([*sections, _scores(table)] if table.provenance.scores else sections))
    return 0


def as_json(table: RoutingTable) -> dict[str, Any]:
    """Return the table with its centres in tokens and each cluster's gain, without what only machines need."""
    whole = table.model_dump(mode="json")
    kept = ("digest", "split", "slo", "routing_policy", "provenance", "created_at", "software_version")
    return {
        **{name: whole[name] for name in kept},
        "clustering": whole["decider"]["clustering"],
        "clusters": [_cluster_json(table, index) for index in range(len(table.decider.clusters))],
        "output_model": table.output_model
        and table.output_model.model_dump(mode="json", include={"classes", "accuracy", "samples"}),
    }


def _cluster_json(table: RoutingTable, index: int) -> dict[str, Any]:
    cluster = table.decider.clusters[index]
    gain = measured_gain(cluster)
    return {
        "cluster": index,
        "centre_tokens": dict(zip(FEATURE_NAMES, _centre_tokens(table, cluster), strict=True)),
        **cluster.model_dump(mode="json", include={"action", "share", "samples", "rewards"}),
        "gain": None if gain is None else gain._asdict(),
    }


def _centre_tokens(table: RoutingTable, cluster: Cluster) -> list[float]:
    transform = table.decider.transform
    # The centre of a mixture's component may lie a little below no tokens at all.
    return [max(count, 0.0) for count in features_in_tokens(cluster.centre, transform.mean, transform.scale)]


def _heading(source: str, table: RoutingTable) -> str:
    policy = table.routing_policy
    return facts(
        [
            ("table", source),
            ("digest", table.digest),
            ("policy", f"{policy.name}, generation {policy.generation}, uid {policy.uid}" if policy else "none"),
            ("split", f"{table.split}: {table.split.prefill} prefill, {table.split.decode} decode workers"),
            ("SLO", slo_text(table.slo)),
            ("clusters", clustering_text(table)),
            ("created", f"{table.created_at} by release {table.software_version}"),
        ]
    )


def clusters_text(table: RoutingTable) -> str:
    header = ["cluster", "prompt", "prefill eff.", "decode eff.", "output", "share", "samples", "action"]
    rows = [
        [
            str(index),
            *map(tokens, _centre_tokens(table, cluster)),
            f"{cluster.share:.1%}",
            f"{cluster.samples:,}",
            cluster.action,
            _reward(cluster.rewards.local),
            _reward(cluster.rewards.remote),
            gain_text(measured_gain(cluster)),
        ]
        for index, cluster in enumerate(table.decider.clusters)
    ]
    notes = (
        "Centres in tokens; eff.: prompt tokens that the candidate worker would have to compute.\n"
        f"Local, remote: measured {table.provenance.reward} ± standard error. Gain: of the action over the other."
    )
    return f"{columns([*header, 'local', 'remote', 'gain'], rows, left=frozenset({7}))}\n{notes}"


def _reward(reward: Reward | None) -> str:
    return NOTHING if reward is None else uncertain(reward.mean, reward.standard_error)


def _output_model(table: RoutingTable) -> str:
    model = table.output_model
    if model is None:
        return "Output length: no model; the router has to be told."
    rows = [
        [
            entry.name,
            "no limit" if entry.upper_bound_tokens is None else tokens(entry.upper_bound_tokens),
            tokens(entry.representative_tokens),
        ]
        for entry in model.classes
    ]
    title = f"Output length: guessed right {model.accuracy:.1%}, learned from {model.samples:,} requests"
    return f"{title}\n{columns(['class', 'up to', 'counted as'], rows, left=frozenset({0}))}"


def _provenance(table: RoutingTable) -> str:
    fields = table.provenance.model_dump(exclude={"scores"})
    return f"Provenance\n{facts([(name, _provenance_value(value)) for name, value in fields.items()])}"


def _provenance_value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {number}" for name, number in value.items()) or NOTHING
    return NOTHING if value is None else str(value)


def _scores(table: RoutingTable) -> str:
    rows = [
        [
            name,
            f"{score.attainment:.2%}",
            NOTHING if score.interval is None else f"{score.interval[0]:.2%} to {score.interval[1]:.2%}",
        ]
        for name, score in sorted(table.provenance.scores.items(), key=lambda item: -item[1].attainment)
    ]
    return (
        f"Scores on held-out requests\n{columns(['policy', 'attainment', '95 % interval'], rows, left=frozenset({0}))}"
    )
