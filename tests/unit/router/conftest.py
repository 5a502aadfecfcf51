"""Valid tables to start from."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from dolphin_router.contract import INPUT_NAMES, RoutingTable, TableContent, seal

Document = dict[str, Any]
TableBuilder = Callable[..., RoutingTable]
DocumentBuilder = Callable[..., Document]

IDENTITY = [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]


def _cluster(index: int, count: int, *, mixture: bool) -> Document:
    tried = {"mean": 0.8 + 0.01 * index, "standard_error": 0.01, "periods": 12}
    return {
        "centre": [0.5 * index - 1.0, 0.25 * index, -0.25 * index, 0.125],
        "action": "remote" if index % 2 else "local",
        "share": 1.0 / count,
        "samples": 100 + index,
        "rewards": {"local": tried, "remote": {**tried, "mean": 0.82} if index else None},
        "weight": 1.0 / count if mixture else None,
        "precision_cholesky": IDENTITY if mixture else None,
    }


def _output_model() -> Document:
    width = len(INPUT_NAMES)
    return {
        "inputs": list(INPUT_NAMES),
        "classes": [
            {"name": "short", "upper_bound_tokens": 64, "representative_tokens": 30},
            {"name": "medium", "upper_bound_tokens": 512.5, "representative_tokens": 200},
            {"name": "long", "upper_bound_tokens": None, "representative_tokens": 900},
        ],
        "mean": [0.5] * width,
        "scale": [2.0] * width,
        "weights": [[-1.0] * width, [0.0] * width, [1.0] * width],
        "intercepts": [0.0, 0.5, -0.25],
        "accuracy": 0.81,
        "samples": 4000,
    }


def _unsealed(*, clusters: int = 4, mixture: bool = False, **changes: Any) -> Document:
    document = {
        "format": "dolphinrouting.dev/table/v1",
        "routing_policy": {"name": "chat", "uid": "0b7c6d9e-4a51-4a5b-8d2f-111111111111", "generation": 3},
        "split": {"prefill": 2, "decode": 2},
        "slo": {"kind": "both", "ttft_ms": 8000, "ttft_us_per_prompt_token": 0, "tpot_ms": 20},
        "features": ["prompt_tokens", "prefill_effective_tokens", "decode_effective_tokens", "output_tokens"],
        "decider": {
            "kind": "bits",
            "transform": {"mean": [7.0, 6.5, 6.0, 5.0], "scale": [1.5, 1.25, 2.0, 0.75]},
            "clustering": {"kind": "gaussian-mixture", "covariance": "full"} if mixture else {"kind": "kmeans"},
            "clusters": [_cluster(index, clusters, mixture=mixture) for index in range(clusters)],
        },
        "output_model": _output_model(),
        "provenance": {
            "sampler": "scan-then-epsilon-greedy",
            "sampler_settings": {"epsilon": 0.6, "epsilon_decay": 0.98, "least_epsilon": 0.2},
            "reward": "attainment",
            "seed": 7,
            "periods_per_round": 1,
            "rounds": 80,
            "period_s": 600,
            "settle_s": 60,
            "arrivals": "common",
            "arrival_rate_per_s": 3.5,
            "environment": "simulated",
            "hardware_profile": "h20x4-72b",
            "workload": "hybrid",
            "workload_digest": "sha256:abc",
            "expected_lengths": "trained",
            "expected_lengths_accuracy": 0.81,
            "clustering_initialisations": 10,
            "scores": {
                "learned": {"attainment": 0.91, "interval": [0.9, 0.92]},
                "always-local": {"attainment": 0.74, "interval": None},
            },
        },
        "created_at": "2026-01-31T12:00:00Z",
        "software_version": "0.1.0",
    }
    return {**document, **changes}


def _build_table(**changes: Any) -> RoutingTable:
    return seal(TableContent.model_validate_json(json.dumps(_unsealed(**changes))))


@pytest.fixture(scope="session")
def build_table() -> TableBuilder:
    """A function that makes a valid table: ``clusters=``, ``mixture=``, and top-level fields to replace."""
    return _build_table


@pytest.fixture(scope="session")
def build_document() -> DocumentBuilder:
    """As ``build_table``, but the table's JSON object, free to be spoilt."""

    def build(**changes: Any) -> Document:
        document: Document = _build_table(**changes).model_dump(mode="json")
        return document

    return build
