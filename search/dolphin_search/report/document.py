"""The comparison as JSON: an interface that scripts rely on."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dolphin_router.contract import RoutingTable
from dolphin_search.comparison import PolicyResult
from dolphin_search.comparison_run import ComparisonRun
from dolphin_search.samplers.base import Round
from dolphin_sim.result_file import write_result

FORMAT = "dolphinrouting.dev/comparison/v1"

Document = dict[str, Any]


def comparison_document(run: ComparisonRun) -> Document:
    """Return ``policies.<name>.ttft_ms|tpot_ms.{p50,p90,p99}``, ``.attainment``, ``.attainment_interval`` and more.

    Attainment is a fraction, an interval ``[low, high]`` at 95 %. ``lead_of_learned`` is the learned table's attainment
    minus this policy's, paired on the same arrivals. A goodput that no rate reached is null.
    """
    learned = run.results.get("learned")
    return {
        "format": FORMAT,
        "problem": {
            "profile": run.cluster.profile.name,
            "split": str(run.cluster.split),
            "slo": run.slo.model_dump(mode="json"),
            "workload": run.source.workload.name,
            "rate_per_s": run.source.rate_per_s,
            "period_s": run.source.window.period_s,
            "settle_s": run.source.window.settle_s,
            "seed": run.source.seed,
            "test_episodes": run.test_episodes,
            "training_episodes": run.training_episodes,
            "expected_lengths": run.predictor_kind,
        },
        "table": None if run.table is None else {"digest": run.table.digest, "split": str(run.table.split)},
        "policies": {
            name: _policy(result, learned, run.goodputs_per_s.get(name)) for name, result in run.results.items()
        },
        "best_rule": run.best_rule,
        "regret": _regret(run),
    }


def table_document(table: RoutingTable) -> Document:
    """Return the table as plain JSON values."""
    document: Document = table.model_dump(mode="json")
    return document


def rounds_document(rounds: list[Round]) -> list[Document]:
    """Return the rounds of a study, oldest first."""
    return [{"actions": list(entry.actions), **asdict(entry.measurement)} for entry in rounds]


def write_json(path: Path, document: Document) -> None:
    """Write a document to a file, for people too.

    Raises:
        OSError: the file cannot be written; what was there stays.
    """
    write_result(path, f"{json.dumps(document, indent=2, allow_nan=False)}\n".encode())


def _policy(result: PolicyResult, learned: PolicyResult | None, goodput_per_s: float | None) -> Document:
    document: Document = {
        "description": result.policy.describe(),
        "parameters": [_finite(value) for value in result.policy.parameters],
        "requests": result.requests,
        "attainment": result.attainment,
        "attainment_interval": list(result.attainment_interval),
        "end_to_end_attainment": result.end_to_end_attainment,
        "log_latency": result.log_latency,
        "ttft_ms": {name: _finite(value) for name, value in asdict(result.ttft_ms).items()},
        "tpot_ms": {name: _finite(value) for name, value in asdict(result.tpot_ms).items()},
        "remote_share": result.remote_share,
        "reused_share": result.reused_share,
        "preemptions": result.preemptions,
        "goodput_per_s": None if goodput_per_s is None else _finite(goodput_per_s),
    }
    if learned is not None and result is not learned:
        lead, interval = learned.lead_over(result)
        document["lead_of_learned"] = {"attainment": lead, "interval": list(interval)}
    return document


def _regret(run: ComparisonRun) -> Document | None:
    if "exhaustive-best" not in run.results or "learned" not in run.results:
        return None
    lead, interval = run.results["exhaustive-best"].lead_over(run.results["learned"])
    return {"attainment": lead, "interval": list(interval)}


def _finite(value: float) -> float | str:
    # JSON has no infinity: as a threshold it means never, as a latency that no answer came.
    return value if math.isfinite(value) else "infinity"
