"""Small tables for tests of what a router does with them."""

from __future__ import annotations

from dolphin_router.contract import (
    FORMAT,
    ActionName,
    Bits,
    Cluster,
    KMeans,
    Provenance,
    Rewards,
    RoutingTable,
    Slo,
    Split,
    TableContent,
    Transform,
    seal,
)
from dolphin_router.features import FEATURE_NAMES


def table_of(*actions: ActionName, seed: int = 0) -> RoutingTable:
    """Return a table with one cluster for each action, the first for the shortest prompts; ``seed`` sets it apart."""
    clusters = tuple(
        Cluster(
            centre=(float(place) * 4.0,) * 4,
            action=action,
            share=1.0 / len(actions),
            samples=10,
            rewards=Rewards(local=None, remote=None),
            weight=None,
            precision_cholesky=None,
        )
        for place, action in enumerate(actions)
    )
    return seal(
        TableContent(
            format=FORMAT,
            routing_policy=None,
            split=Split(prefill=1, decode=1),
            slo=Slo(kind="both", ttft_ms=8000.0, ttft_us_per_prompt_token=0.0, tpot_ms=20.0),
            features=FEATURE_NAMES,
            decider=Bits(
                kind="bits",
                transform=Transform(mean=(2.0,) * 4, scale=(1.0,) * 4),
                clustering=KMeans(kind="kmeans"),
                clusters=clusters,
            ),
            output_model=None,
            provenance=Provenance.unsearched("test", seed=seed),
            created_at="2026-01-31T12:00:00Z",
            software_version="0",
        )
    )
