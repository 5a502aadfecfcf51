"""A learned table as a router would get it, but for its actions: all remote, so that every request takes both legs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

from dolphin_router.contract import (
    FORMAT,
    INPUT_NAMES,
    Bits,
    ClassName,
    Cluster,
    KMeans,
    OutputClass,
    OutputModel,
    Provenance,
    Rewards,
    RoutingTable,
    Slo,
    Split,
    TableContent,
    Transform,
    save_table,
    seal,
)
from dolphin_router.features import FEATURE_NAMES

CLUSTERS: Final = 8
SEED: Final = 1


def remote_table() -> RoutingTable:
    """Return a table of eight clusters with an output-length model."""
    generator = random.Random(SEED)
    return seal(
        TableContent(
            format=FORMAT,
            routing_policy=None,
            split=Split(prefill=1, decode=1),
            slo=Slo(kind="both", ttft_ms=8000.0, ttft_us_per_prompt_token=0.0, tpot_ms=20.0),
            features=FEATURE_NAMES,
            decider=Bits(
                kind="bits",
                transform=Transform(mean=(7.0, 6.5, 6.0, 5.0), scale=(1.5, 1.5, 2.0, 1.0)),
                clustering=KMeans(kind="kmeans"),
                clusters=tuple(_cluster(generator) for _ in range(CLUSTERS)),
            ),
            output_model=_output_model(generator),
            provenance=Provenance.unsearched("benchmark", seed=SEED),
            created_at="2026-01-31T12:00:00Z",
            software_version="benchmark",
        )
    )


def save_remote_table(path: Path) -> None:
    """Write the table to a file."""
    save_table(path, remote_table())


def _cluster(generator: random.Random) -> Cluster:
    first, second, third, fourth = (generator.gauss(0.0, 1.0) for _ in range(4))
    return Cluster(
        centre=(first, second, third, fourth),
        action="remote",
        share=1.0 / CLUSTERS,
        samples=1000,
        rewards=Rewards(local=None, remote=None),
        weight=None,
        precision_cholesky=None,
    )


def _output_model(generator: random.Random) -> OutputModel:
    width = len(INPUT_NAMES)
    classes: tuple[tuple[ClassName, float | None, float], ...] = (
        ("short", 64.0, 30.0),
        ("medium", 512.0, 200.0),
        ("long", None, 900.0),
    )
    return OutputModel(
        inputs=INPUT_NAMES,
        classes=tuple(
            OutputClass(name=name, upper_bound_tokens=bound, representative_tokens=tokens)
            for name, bound, tokens in classes
        ),
        mean=(0.5,) * width,
        scale=(2.0,) * width,
        weights=tuple(tuple(generator.gauss(0.0, 1.0) for _ in range(width)) for _ in classes),
        intercepts=(0.0, 0.0, 0.0),
        accuracy=0.8,
        samples=4000,
    )
