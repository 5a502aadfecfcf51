"""Compare two tables: split, SLO, clusters, scores.

Clusters are matched by the distance of their centres in ln(1 + tokens), the nearest pair first.

Exit code 0: both make the same decision for every request, as transform, centres, actions and output model are
equal; split, SLO and scores may still differ. 1: they do not. 2: a table cannot be read.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from dolphin_router.comparison import ClusterPair, decide_alike, match_clusters
from dolphin_router.contract import Cluster, RoutingTable, load_table

from .wording import NOTHING, clustering_text, columns, facts, slo_text

NAME = "diff"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("a", metavar="A", help="a routing table")
    parser.add_argument("b", metavar="B", help="the routing table to compare it with")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print the comparison and return 1 when the tables decide differently."""
    a, b = load_table(arguments.a), load_table(arguments.b)
    alike = decide_alike(a, b)
    pairs = match_clusters(a.decider, b.decider)
    if arguments.json:
        print(json.dumps(as_json(a, b, pairs, alike=alike), indent=2))
    else:
        print("\n\n".join([_summary(a, b, alike=alike), _clusters(a, b, pairs), _scores(a, b)]))
    return 0 if alike else 1


def as_json(a: RoutingTable, b: RoutingTable, pairs: list[ClusterPair], *, alike: bool) -> dict[str, Any]:
    """Return the comparison for other programs to read; ``a`` and ``b`` stand for the first and the second table."""

    def both(name: str) -> dict[str, Any]:
        return {side: table.model_dump(mode="json")[name] for side, table in (("a", a), ("b", b))}

    return {
        "same_decisions": alike,
        "digest": both("digest"),
        "split": both("split"),
        "slo": both("slo"),
        "clustering": {side: table.decider.clustering.model_dump() for side, table in (("a", a), ("b", b))},
        "same_output_model": a.output_model == b.output_model,
        "clusters": [_pair_json(pair, _cluster(a, pair.a), _cluster(b, pair.b)) for pair in pairs],
        "scores": {name: {"a": _attainment(a, name), "b": _attainment(b, name)} for name in _policies(a, b)},
    }


def _pair_json(pair: ClusterPair, a: Cluster | None, b: Cluster | None) -> dict[str, Any]:
    return {
        **pair._asdict(),
        "action": {"a": a and a.action, "b": b and b.action},
        "share": {"a": None if a is None else a.share, "b": None if b is None else b.share},
    }


def _cluster(table: RoutingTable, index: int | None) -> Cluster | None:
    return None if index is None else table.decider.clusters[index]


def _policies(a: RoutingTable, b: RoutingTable) -> list[str]:
    return sorted(a.provenance.scores.keys() | b.provenance.scores.keys())


def _attainment(table: RoutingTable, policy: str) -> float | None:
    score = table.provenance.scores.get(policy)
    return None if score is None else score.attainment


def _change(a: str, b: str) -> str:
    return f"{a}, same" if a == b else f"{a} -> {b}"


def _summary(a: RoutingTable, b: RoutingTable, *, alike: bool) -> str:
    return facts(
        [
            ("decisions", "same for every request" if alike else "different"),
            ("digest", _change(a.digest, b.digest)),
            ("split", _change(str(a.split), str(b.split))),
            ("SLO", _change(slo_text(a.slo), slo_text(b.slo))),
            ("clusters", _change(clustering_text(a), clustering_text(b))),
            ("output model", "same" if a.output_model == b.output_model else "different"),
        ]
    )


def _clusters(a: RoutingTable, b: RoutingTable, pairs: list[ClusterPair]) -> str:
    rows = []
    for pair in pairs:
        first, second = _cluster(a, pair.a), _cluster(b, pair.b)
        rows.append(
            [
                NOTHING if pair.a is None else str(pair.a),
                NOTHING if pair.b is None else str(pair.b),
                NOTHING if pair.distance is None else f"{pair.distance:.3f}",
                _change(first.action if first else NOTHING, second.action if second else NOTHING),
                f"{first.share:.1%}" if first else NOTHING,
                f"{second.share:.1%}" if second else NOTHING,
            ]
        )
    return columns(["a", "b", "centres apart", "action", "share a", "share b"], rows, left=frozenset({3}))


def _scores(a: RoutingTable, b: RoutingTable) -> str:
    rows = []
    for policy in _policies(a, b):
        first, second = _attainment(a, policy), _attainment(b, policy)
        rows.append(
            [
                policy,
                NOTHING if first is None else f"{first:.2%}",
                NOTHING if second is None else f"{second:.2%}",
                NOTHING if first is None or second is None else f"{100 * (second - first):+.2f} points",
            ]
        )
    return columns(["attainment", "a", "b", "change"], rows, left=frozenset({0}))
