"""vLLM's Prometheus metrics, by their names. Times are seconds of the wall clock, as a real engine's would be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from dolphin_sim.emulator.batch import IDLE_S
from dolphin_sim.emulator.call import Choice

if TYPE_CHECKING:
    from dolphin_sim.emulator.engine import EmulatedEngine

# vLLM's.
_LONG_BUCKETS_S = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
)
_TOKEN_BUCKETS_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_COUNT_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
_LABELS = ("model_name", "engine")


class EngineMetrics:
    """The metrics of one worker."""

    def __init__(self, engine: EmulatedEngine) -> None:
        self._engine = engine
        self._registry = CollectorRegistry()
        self._values = {"model_name": engine.options.model, "engine": "0"}
        self.failed_transfers = 0
        batch = engine.batch
        self._gauge("num_requests_running", "Requests in the batch.", lambda: batch.running_count)
        self._gauge("num_requests_waiting", "Requests that wait.", lambda: batch.waiting_count)
        self._gauge("kv_cache_usage_perc", "Share of the KV memory in use.", lambda: engine.memory.used_share)
        self._set_waiting_by_reason()
        self._gauge("num_preemptions_total", "Preemptions.", lambda: batch.preemptions)
        self._gauge("nixl_num_failed_transfers_total", "Failed transfers.", lambda: self.failed_transfers)
        self._gauge("nixl_num_kv_expired_reqs_total", "Stranded leases.", lambda: engine.lender.expired_count)
        self._prompt = self._counter("prompt_tokens", "Prompt tokens.")
        self._generated = self._counter("generation_tokens", "Generated tokens.")
        self._queries = self._counter("prefix_cache_queries", "Prompt tokens looked up.")
        self._hits = self._counter("prefix_cache_hits", "Prompt tokens found.")
        self._external_queries = self._counter("external_prefix_cache_queries", "Prompt tokens looked up elsewhere.")
        self._external_hits = self._counter("external_prefix_cache_hits", "Prompt tokens found elsewhere.")
        self._by_source = Counter(
            "vllm:prompt_tokens_by_source", "Prompt tokens.", (*_LABELS, "source"), registry=self._registry
        )
        self._finished = Counter(
            "vllm:request_success", "Requests that ended.", (*_LABELS, "finished_reason"), registry=self._registry
        )
        self._ttft = self._histogram("time_to_first_token_seconds", "Time to first token.")
        self._itl = self._histogram("inter_token_latency_seconds", "Time between tokens.", _TOKEN_BUCKETS_S)
        self._tpot = self._histogram("request_time_per_output_token_seconds", "Mean of it.", _TOKEN_BUCKETS_S)
        self._e2e = self._histogram("e2e_request_latency_seconds", "Whole requests.")
        self._queue = self._histogram("request_queue_time_seconds", "Waiting.")
        self._prefill = self._histogram("request_prefill_time_seconds", "Prefill.")
        self._decode = self._histogram("request_decode_time_seconds", "Decode.")
        self._computed = self._histogram("request_prefill_kv_computed_tokens", "Computed prompt.", _COUNT_BUCKETS)
        self._transfer = self._histogram("nixl_xfer_time_seconds", "Transfers.")
        self._bytes = self._counter("nixl_bytes_transferred", "Bytes moved.")
        info = Gauge(
            "vllm:cache_config_info", "The cache.", ("block_size", "num_gpu_blocks", "engine"), registry=self._registry
        )
        blocks = engine.options.profile.kv_capacity_tokens // engine.options.block_tokens
        info.labels(str(engine.options.block_tokens), str(blocks), "0").set(1)

    def text(self) -> bytes:
        """Return the metrics as Prometheus reads them."""
        return generate_latest(self._registry)

    def observe_transfer(self, tokens: int, simulated_s: float) -> None:
        """Count a KV cache that came from elsewhere."""
        self._transfer.observe(self._engine.pacer.wall_s(simulated_s))
        self._bytes.inc(tokens * self._engine.options.profile.kv_bytes_per_token)
        self._external_hits.inc(tokens)
        self._by_source.labels(**self._values, source="external_kv_transfer").inc(tokens)

    def observe_end(self, choice: Choice) -> None:
        """Count a choice that has ended, or was aborted."""
        generation = choice.generation
        assert generation is not None
        wall_s = self._engine.pacer.wall_s
        is_remote = choice.run.is_remote
        reason = choice.length.finish_reason if generation.generated_tokens >= choice.length.tokens else "abort"
        self._finished.labels(**self._values, finished_reason=reason).inc()
        if generation.scheduled_s == IDLE_S:
            return
        computed = 0 if is_remote else generation.prompt_tokens - generation.reused_tokens
        self._prompt.inc(generation.prompt_tokens)
        self._queries.inc(generation.prompt_tokens)
        self._hits.inc(generation.reused_tokens)
        if is_remote:
            self._external_queries.inc(generation.prompt_tokens - generation.reused_tokens)
        self._by_source.labels(**self._values, source="local_compute").inc(computed)
        self._by_source.labels(**self._values, source="local_cache_hit").inc(generation.reused_tokens)
        self._computed.observe(computed)
        self._generated.inc(generation.generated_tokens)
        self._queue.observe(wall_s(max(generation.scheduled_s - generation.arrival_s, 0.0)))
        if generation.first_token_s == IDLE_S:
            return
        self._ttft.observe(wall_s(generation.first_token_s - generation.arrival_s))
        self._prefill.observe(wall_s(max(generation.first_token_s - generation.scheduled_s, 0.0)))
        decode_s = wall_s(generation.last_token_s - generation.first_token_s)
        self._decode.observe(decode_s)
        self._e2e.observe(wall_s(generation.last_token_s - generation.arrival_s))
        if generation.generated_tokens > 1:
            self._tpot.observe(decode_s / (generation.generated_tokens - 1))
            # The mean in place of each: a running engine has too many tokens to look at every one.
            self._itl.observe(decode_s / (generation.generated_tokens - 1))

    def _gauge(self, name: str, text: str, value: object) -> None:
        gauge = Gauge(f"vllm:{name}", text, _LABELS, registry=self._registry)
        gauge.labels(**self._values).set_function(value)  # type: ignore[arg-type]

    def _set_waiting_by_reason(self) -> None:
        gauge = Gauge("vllm:num_requests_waiting_by_reason", "Why.", (*_LABELS, "reason"), registry=self._registry)
        batch = self._engine.batch
        gauge.labels(**self._values, reason="capacity").set_function(lambda: batch.waiting_count)
        gauge.labels(**self._values, reason="deferred").set_function(lambda: batch.receiving_count)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"vllm:{name}", text, _LABELS, registry=self._registry).labels(**self._values)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] = _LONG_BUCKETS_S) -> Histogram:
        return Histogram(f"vllm:{name}", text, _LABELS, buckets=buckets, registry=self._registry).labels(**self._values)
