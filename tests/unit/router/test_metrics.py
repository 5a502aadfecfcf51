"""What is exported is what happened, in a form that Prometheus reads, with a bounded number of series."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from dolphin_router.contract import RoutingTable, Slo
from dolphin_router.decision import Action, Decision
from dolphin_router.exchange.admission import Admission
from dolphin_router.features import Features
from dolphin_router.kv_events.event_index import EventIndex
from dolphin_router.metrics import (
    Family,
    RouterMetrics,
    Sample,
    admission_families,
    cache_families,
    merge,
    reload_families,
    render,
    shadow_families,
    table_families,
)
from dolphin_router.metrics.families import Histogram
from dolphin_router.prefix_index import PrefixIndex
from dolphin_router.request_record import RequestRecord
from dolphin_router.routing import ActiveTable
from dolphin_router.shadow import ShadowComparison
from dolphin_router.token_count import TokenEstimate

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
SLO = Slo(kind="both", ttft_ms=1000.0, ttft_us_per_prompt_token=0.0, tpot_ms=50.0)
END_TO_END = SLO.model_copy(update={"kind": "end-to-end"})


def scraped(text: bytes) -> Samples:
    """All samples as Prometheus's own parser reads them."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def text_of(families: Iterable[Family]) -> bytes:
    return b"".join(render(families))


def value(metrics: RouterMetrics, name: str, **labels: str) -> float | None:
    return scraped(text_of(metrics.families())).get((name, tuple(sorted(labels.items()))))


def ended(**changes: Any) -> RequestRecord:
    fields: dict[str, Any] = {
        "arrived_s": 10.0,
        "arrived_unix_s": 1.8e9,
        "path": "/v1/chat/completions",
        "model": "m",
        "features": Features(700.0, 188.0, 700.0, 200.0),
        "prompt_estimate": TokenEstimate(700, False, "m", 2800, 0, 0),
        "decision": Decision(Action.REMOTE, 3, "cluster", 0.5),
        "action_taken": "remote",
        "reason": "cluster",
        "prefill_worker": "p:1",
        "decode_worker": "d:1",
        "first_byte_s": 10.5,
        "finished_s": 12.5,
        "status": 200,
        "outcome": "completed",
        "streamed": True,
        "usage_prompt_tokens": 700,
        "generated_tokens": 101,
    }
    return RequestRecord(**(fields | changes))


def test_a_request_is_counted_by_status_decision_and_latency() -> None:
    metrics = RouterMetrics(engine="vllm-nixl")
    metrics.use_slo(SLO)
    for _ in range(3):
        metrics.finished(ended())
    assert value(metrics, "dolphin_requests_total", path="chat", code="200", outcome="completed") == 3
    assert value(metrics, "dolphin_decisions_total", cluster="3", action="remote", reason="cluster") == 3
    assert value(metrics, "dolphin_slo_requests_total", cluster="3", result="met") == 3
    assert value(metrics, "dolphin_ttft_seconds_sum", action="remote") == pytest.approx(1.5)
    assert value(metrics, "dolphin_ttft_seconds_bucket", action="remote", le="0.5") == 3
    assert value(metrics, "dolphin_ttft_seconds_bucket", action="remote", le="0.25") == 0
    assert value(metrics, "dolphin_tpot_seconds_sum", action="remote") == pytest.approx(0.06)
    assert value(metrics, "dolphin_request_duration_seconds_count", action="remote") == 3
    assert value(metrics, "dolphin_prompt_tokens_estimate_ratio_bucket", le="1.05") == 3
    assert value(metrics, "dolphin_cluster_distance_sum", cluster="3") == pytest.approx(1.5)
    assert value(metrics, "dolphin_cluster_distance_count", cluster="3") == 3
    assert value(metrics, "dolphin_worker_requests_total", worker="p:1", role="prefill") == 3
    assert value(metrics, "dolphin_worker_requests_total", worker="d:1", role="decode") == 3
    assert value(metrics, "dolphin_prompt_tokens_total") == 2100
    assert value(metrics, "dolphin_output_tokens_total") == 303


@pytest.mark.parametrize(
    ("slo", "changes", "result"),
    [
        (SLO, {}, "met"),
        (SLO, {"first_byte_s": 11.5}, "missed"),
        (SLO, {"finished_s": 16.0}, "missed"),
        (SLO, {"first_byte_s": 11.5, "finished_s": 12.0}, "missed"),
        (END_TO_END, {"first_byte_s": 11.5, "finished_s": 12.0}, "met"),
        (END_TO_END, {"finished_s": 16.5}, "missed"),
        # One piece shows its end only: 1,000 ms and 100 times 50 ms are allowed.
        (SLO, {"streamed": False, "first_byte_s": 12.5}, "met"),
        (SLO, {"streamed": False, "first_byte_s": 17.0, "finished_s": 17.0}, "missed"),
        (SLO, {"generated_tokens": 1}, "met"),
        (SLO, {"generated_tokens": None}, "not judged"),
        (SLO, {"outcome": "failed", "status": 502}, "missed"),
        (SLO, {"outcome": "failed", "status": None}, "missed"),
        (SLO, {"outcome": "rejected", "status": 429}, "missed"),
        (SLO, {"outcome": "rejected", "status": 503}, "missed"),
        (SLO, {"outcome": "rejected", "status": 400}, "not judged"),
        (SLO, {"outcome": "client-closed", "status": None}, "not judged"),
        (None, {}, "not judged"),
    ],
)
def test_the_slo_is_the_tables(slo: Slo | None, changes: dict[str, Any], result: str) -> None:
    metrics = RouterMetrics(engine="vllm-nixl")
    metrics.use_slo(slo)
    metrics.finished(ended(**changes))
    assert value(metrics, "dolphin_slo_requests_total", cluster="3", result=result) == 1


def test_what_cannot_be_seen_is_not_counted() -> None:
    metrics = RouterMetrics(engine="vllm-nixl")
    metrics.finished(ended(streamed=False))
    metrics.finished(ended(outcome="failed"))
    metrics.finished(ended(decision=None, action_taken=None, reason="", outcome="failed", status=503))
    assert value(metrics, "dolphin_ttft_seconds_count", action="remote") == 0
    assert value(metrics, "dolphin_request_duration_seconds_count", action="remote") == 1
    assert value(metrics, "dolphin_requests_total", path="chat", code="503", outcome="failed") == 1
    assert value(metrics, "dolphin_slo_requests_total", cluster="", result="not judged") == 1


def test_exact_prompt_lengths_say_nothing_of_the_estimate() -> None:
    metrics = RouterMetrics(engine="vllm-nixl")
    metrics.finished(ended(prompt_estimate=TokenEstimate(700, True, "m", 2800, 0, 0)))
    metrics.finished(ended(prompt_estimate=None))
    metrics.finished(ended(usage_prompt_tokens=None))
    metrics.finished(ended(usage_prompt_tokens=0))
    assert value(metrics, "dolphin_prompt_tokens_estimate_ratio_count") == 0


def test_what_happens_beside_requests_is_counted() -> None:
    metrics = RouterMetrics(engine="sglang")
    metrics.decided(15e-6)
    metrics.refused("queue_full")
    metrics.stranded_lease("decode")
    metrics.finished(ended(retries=2))
    assert value(metrics, "dolphin_decision_duration_seconds_bucket", le="2e-05") == 1
    assert value(metrics, "dolphin_refused_requests_total", reason="queue_full") == 1
    assert value(metrics, "dolphin_stranded_leases_total", engine="sglang", phase="decode") == 1
    assert value(metrics, "dolphin_retries_total") == 2


def test_what_a_shadow_table_would_have_decided_is_told() -> None:
    comparison = ShadowComparison()
    comparison.decisions = {(Action.LOCAL, Action.REMOTE): 3, (Action.LOCAL, Action.LOCAL): 9}
    comparison.agreements = {0: 9}
    comparison.disagreements = {1: 3}
    samples = scraped(text_of(shadow_families(comparison)))
    assert samples["dolphin_shadow_decisions_total", (("active", "local"), ("shadow", "remote"))] == 3
    assert samples["dolphin_shadow_decisions_total", (("active", "local"), ("shadow", "local"))] == 9
    assert samples["dolphin_shadow_cluster_decisions", (("cluster", "1"), ("result", "other"))] == 3


def test_series_of_workers_that_have_gone_are_dropped() -> None:
    metrics = RouterMetrics(engine="vllm-nixl")
    for number in range(100):
        metrics.finished(ended(decode_worker=f"d:{number}"))
    metrics.forget_workers_except(["p:1", "d:7"])
    workers = {dict(labels)["worker"] for name, labels in scraped(text_of(metrics.families())) if "_worker_" in name}
    assert workers == {"p:1", "d:7"}


def test_odd_status_codes_make_few_series() -> None:
    metrics = RouterMetrics(engine="vllm-nixl")
    for status in range(200, 600):
        metrics.finished(ended(status=status))
    codes = {
        dict(labels)["code"]
        for name, labels in scraped(text_of(metrics.families()))
        if name.endswith("requests_total") and "code" in dict(labels)
    }
    assert len(codes) < 25
    assert value(metrics, "dolphin_requests_total", path="chat", code="4xx", outcome="completed") == 90


def test_the_state_of_a_router_is_told(build_table: Callable[..., RoutingTable]) -> None:
    class Counts:
        accepted = 3
        refused = 1

    table = build_table()
    admission = Admission(places=5, waiting_places=5)
    assert admission.try_enter()
    samples = scraped(
        text_of(
            [
                *RouterMetrics(engine="vllm-nixl").families(),
                *admission_families(admission),
                *cache_families(PrefixIndex(capacity_tokens=1000), EventIndex()),
                *table_families(ActiveTable.from_table(table), None),
                *reload_families({"table": Counts()}),
            ]
        )
    )
    assert samples["dolphin_requests_in_flight", ()] == 1
    assert samples["dolphin_table_info", (("digest", table.digest), ("split", "2P2D"))] == 1
    assert samples["dolphin_reloads_total", (("result", "refused"), ("what", "table"))] == 1
    assert samples["dolphin_kv_events_total", (("what", "gaps"),)] == 0
    assert not any(name == "dolphin_shadow_table_info" for name, _ in samples)


def test_every_name_has_help_and_a_unit_where_it_has_one() -> None:
    metrics = RouterMetrics(engine="vllm-nixl")
    metrics.finished(ended())
    families = list(metrics.families())
    for family in families:
        assert family.name.startswith("dolphin_")
        assert family.help.endswith(".")
        assert (family.kind == "counter") == family.name.endswith("_total")
    assert len({family.name for family in families}) == len(families)


@settings(deadline=None)
@given(values=st.lists(st.floats(-10, 10) | st.sampled_from([1.0, 2.0])))
def test_a_histogram_holds_each_value_once(values: list[float]) -> None:
    histogram = Histogram((1.0, 2.0))
    for number in values:
        histogram.observe(number)
    samples = {(sample.suffix, sample.labels): sample.value for sample in histogram.samples(())}
    assert samples["_bucket", (("le", "1"),)] == sum(number <= 1.0 for number in values)
    assert samples["_bucket", (("le", "2"),)] == sum(number <= 2.0 for number in values)
    assert samples["_bucket", (("le", "+Inf"),)] == samples["_count", ()] == len(values)
    assert samples["_sum", ()] == pytest.approx(math.fsum(values))


# Merging

TEXT = st.text(max_size=8)
WHOLE = st.integers(0, 2**40)
SERIES = st.dictionaries(st.tuples(TEXT, TEXT), WHOLE, max_size=6)
PROCESS = st.fixed_dictionaries({"dolphin_a_total": SERIES, "dolphin_b_total": SERIES, "dolphin_table_info": SERIES})


def rendered(process: dict[str, dict[tuple[str, str], int]]) -> bytes:
    return text_of(
        Family(
            name,
            "counter" if name.endswith("_total") else "gauge",
            "Something.",
            [Sample((("x", x), ("y", y)), count) for (x, y), count in series.items()],
        )
        for name, series in process.items()
    )


@settings(deadline=None)
@given(processes=st.lists(PROCESS, min_size=1, max_size=4))
def test_processes_are_summed(processes: list[dict[str, dict[tuple[str, str], int]]]) -> None:
    expected: Samples = {}
    for process in processes:
        for name, series in process.items():
            for (x, y), count in series.items():
                key = (name, (("x", x), ("y", y)))
                before = expected.get(key, 0)
                expected[key] = max(before, count) if name == "dolphin_table_info" else before + count
    merged = merge([rendered(process) for process in processes])
    assert scraped(merged) == expected
    assert merge([merged]) == merged


def test_merged_scrapes_of_routers_are_their_sums() -> None:
    routers = [RouterMetrics(engine="vllm-nixl") for _ in range(3)]
    for number, router in enumerate(routers):
        for _ in range(number + 1):
            router.finished(ended(first_byte_s=10.25 + number / 8))
    samples = scraped(merge([text_of(router.families()) for router in routers]))
    assert samples["dolphin_ttft_seconds_count", (("action", "remote"),)] == 6
    assert samples["dolphin_ttft_seconds_sum", (("action", "remote"),)] == pytest.approx(0.25 + 2 * 0.375 + 3 * 0.5)
    assert samples["dolphin_ttft_seconds_bucket", (("action", "remote"), ("le", "+Inf"))] == 6
    assert text_of(routers[0].families()).count(b"# TYPE") == merge([text_of(r.families()) for r in routers]).count(
        b"# TYPE"
    )


def test_what_is_no_scrape_is_refused() -> None:
    with pytest.raises(ValueError, match="'502 Bad Gateway' is no sample"):
        merge([b"502 Bad Gateway\n"])
    assert merge([]) == b""
