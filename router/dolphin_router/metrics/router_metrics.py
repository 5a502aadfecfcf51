"""Counting of requests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from dolphin_router.contract import Slo
from dolphin_router.request_latency import is_met, latency_of
from dolphin_router.request_record import Outcome, RequestRecord

from .families import Family, Histogram, Labels, Sample

TTFT_BOUNDS_S: Final[tuple[float, ...]] = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.0,
    4.0,
    8.0,
    16.0,
    32.0,
    64.0,
)
TPOT_BOUNDS_S: Final[tuple[float, ...]] = (
    0.002,
    0.005,
    0.01,
    0.015,
    0.02,
    0.03,
    0.04,
    0.06,
    0.08,
    0.1,
    0.15,
    0.25,
    0.5,
    1.0,
)
DURATION_BOUNDS_S: Final[tuple[float, ...]] = (
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
    320.0,
)
DECISION_BOUNDS_S: Final[tuple[float, ...]] = (5e-6, 1e-5, 2e-5, 4e-5, 8e-5, 1.6e-4, 3.2e-4, 1e-3, 5e-3, 2e-2)
TOKEN_RATIO_BOUNDS: Final[tuple[float, ...]] = (0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0, 4.0)

_CODES = frozenset({200, 400, 401, 403, 404, 408, 413, 422, 424, 429, 499, 500, 502, 503, 504})
_PATHS = {"/v1/chat/completions": "chat", "/v1/completions": "text"}
_SLO_RESULTS = {True: "met", False: "missed", None: "not judged"}
_ACTIONS = ("local", "remote")


class RouterMetrics:
    """Hears of every request. One thread only.

    The number of series is bounded: labels are the engine's name, clusters (at most 64), actions (2), reasons and
    phases (constants of the program), status codes (15 by name, others by their class), outcomes (4) and the workers
    that there are.
    """

    def __init__(self, *, engine: str) -> None:
        self._engine = engine
        self._slo: Slo | None = None
        self._requests: defaultdict[tuple[str, int | None, Outcome | None], int] = defaultdict(int)
        self._decisions: defaultdict[tuple[int | None, str, str], int] = defaultdict(int)
        self._judged: defaultdict[tuple[int | None, bool | None], int] = defaultdict(int)
        self._workers: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._ttft_s = {action: Histogram(TTFT_BOUNDS_S) for action in _ACTIONS}
        self._tpot_s = {action: Histogram(TPOT_BOUNDS_S) for action in _ACTIONS}
        self._duration_s = {action: Histogram(DURATION_BOUNDS_S) for action in _ACTIONS}
        self._decision_s = Histogram(DECISION_BOUNDS_S)
        self._token_ratio = Histogram(TOKEN_RATIO_BOUNDS)
        self._distances: defaultdict[int, float] = defaultdict(float)
        self._decided: defaultdict[int, int] = defaultdict(int)
        self._prompt_tokens = 0
        self._output_tokens = 0
        self._retries = 0
        self._stranded: defaultdict[str, int] = defaultdict(int)
        self._refused: defaultdict[str, int] = defaultdict(int)

    def use_slo(self, slo: Slo | None) -> None:
        """Judge requests by this SLO from now on: that of the table in use."""
        self._slo = slo

    def decided(self, seconds: float) -> None:
        """A request's way was chosen, this long after it had been parsed."""
        self._decision_s.observe(seconds)

    def refused(self, reason: str) -> None:
        """The router answered a request by itself, without a worker; ``reason`` is one of few constants."""
        self._refused[reason] += 1

    def stranded_lease(self, phase: str) -> None:
        """A KV cache stays on a prefill worker until its lease ends; ``phase`` is one of few constants."""
        self._stranded[phase] += 1

    def finished(self, record: RequestRecord) -> None:
        """A request is over."""
        latency = latency_of(record)
        slo = self._slo
        met = None if slo is None else is_met(slo, record, latency)
        decision, action = record.decision, record.action_taken
        cluster = None
        if decision is not None:
            cluster = decision.cluster
            self._distances[cluster] += decision.distance
            self._decided[cluster] += 1
        self._requests[record.path, record.status, record.outcome] += 1
        self._judged[cluster, met] += 1
        if action is not None:
            self._decisions[cluster, action, record.reason] += 1
            if record.prefill_worker is not None:
                self._workers["prefill", record.prefill_worker] += 1
            if record.decode_worker is not None:
                self._workers["decode", record.decode_worker] += 1
            if record.outcome == "completed":
                ttft_ms, tpot_ms, duration_ms = latency
                if duration_ms is not None:
                    self._duration_s[action].observe(duration_ms * 1e-3)
                if ttft_ms is not None:
                    self._ttft_s[action].observe(ttft_ms * 1e-3)
                if tpot_ms is not None and record.generated_tokens != 1:
                    self._tpot_s[action].observe(tpot_ms * 1e-3)
        counted = record.usage_prompt_tokens
        if counted is not None:
            self._prompt_tokens += counted
            estimate = record.prompt_estimate
            if counted > 0 and estimate is not None and not estimate.is_exact:
                self._token_ratio.observe(estimate.tokens / counted)
        if record.generated_tokens is not None:
            self._output_tokens += record.generated_tokens
        self._retries += record.retries

    def forget_workers_except(self, names: Iterable[str]) -> None:
        """Drop the series of workers that have gone."""
        kept = set(names)
        for key in [key for key in self._workers if key[1] not in kept]:
            del self._workers[key]

    def families(self) -> Iterator[Family]:
        """Yield everything that was counted."""
        yield from self._request_families()
        for name, by_action, text in (
            ("dolphin_ttft_seconds", self._ttft_s, "Time to the first piece of streamed answers."),
            ("dolphin_tpot_seconds", self._tpot_s, "Mean time of each later token of streamed answers."),
            ("dolphin_request_duration_seconds", self._duration_s, "Time from a request to the end of its answer."),
        ):
            samples = [sample for action in _ACTIONS for sample in by_action[action].samples((("action", action),))]
            yield Family(name, "histogram", text, samples)
        yield _histogram(
            "dolphin_decision_duration_seconds", "Time from a parsed request to its decision.", self._decision_s
        )
        yield _histogram(
            "dolphin_prompt_tokens_estimate_ratio",
            "Estimated prompt length over the one that the engine counted.",
            self._token_ratio,
        )
        yield Family(
            "dolphin_cluster_distance",
            "summary",
            "Distance of requests from their cluster's centre; it rises when traffic drifts from what was learned.",
            [
                sample
                for cluster, count in sorted(self._decided.items())
                for sample in (
                    Sample((("cluster", str(cluster)),), self._distances[cluster], "_sum"),
                    Sample((("cluster", str(cluster)),), count, "_count"),
                )
            ],
        )
        engine = (("engine", self._engine),)
        yield _counters(
            "dolphin_stranded_leases_total",
            "KV caches that stay on a prefill worker until their lease ends.",
            {(*engine, ("phase", phase)): count for phase, count in sorted(self._stranded.items())},
        )
        yield _counters(
            "dolphin_refused_requests_total",
            "Requests that the router answered with an error of its own.",
            {(("reason", reason),): count for reason, count in sorted(self._refused.items())},
        )
        yield _counters("dolphin_retries_total", "Attempts at requests after the first.", {(): self._retries})
        yield _counters(
            "dolphin_prompt_tokens_total", "Prompt tokens as engines counted them.", {(): self._prompt_tokens}
        )
        yield _counters("dolphin_output_tokens_total", "Tokens of answers.", {(): self._output_tokens})
        yield _counters(
            "dolphin_worker_requests_total",
            "Requests that a worker took part in, by the part.",
            {(("worker", name), ("role", role)): count for (role, name), count in sorted(self._workers.items())},
        )

    def _request_families(self) -> Iterator[Family]:
        requests: defaultdict[Labels, int] = defaultdict(int)
        for (path, status, outcome), count in self._requests.items():
            labels = (("path", _PATHS.get(path, "other")), ("code", _code(status)), ("outcome", outcome or ""))
            requests[labels] += count
        yield _counters("dolphin_requests_total", "Requests that have ended.", requests)
        yield _counters(
            "dolphin_decisions_total",
            "Requests by cluster, by where their prompt was computed, and why.",
            {
                (("cluster", _cluster(cluster)), ("action", action), ("reason", reason)): count
                for (cluster, action, reason), count in self._decisions.items()
            },
        )
        yield _counters(
            "dolphin_slo_requests_total",
            "Requests by cluster and by whether they met the SLO.",
            {
                (("cluster", _cluster(cluster)), ("result", _SLO_RESULTS[met])): count
                for (cluster, met), count in self._judged.items()
            },
        )


def _counters(name: str, help_text: str, values: dict[Labels, int]) -> Family:
    return Family(name, "counter", help_text, [Sample(labels, value) for labels, value in values.items()])


def _histogram(name: str, help_text: str, histogram: Histogram) -> Family:
    return Family(name, "histogram", help_text, list(histogram.samples(())))


def _code(status: int | None) -> str:
    if status is None:
        return "none"
    return str(status) if status in _CODES else f"{status // 100}xx"


def _cluster(cluster: int | None) -> str:
    return "" if cluster is None else str(cluster)
