"""What a replay measured, in the workload's time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dolphin_router.contract import Slo
from dolphin_search.bootstrap import Interval, block_sums, mean_interval
from dolphin_search.comparison import Percentiles
from dolphin_search.replay.answer import Answer
from dolphin_sim.engine.state import FINISHED, LOCAL, NONE, REMOTE, SHIPPING
from dolphin_sim.outcomes import Outcomes
from dolphin_sim.workloads.requests import Floats, Ints, Requests

FORMAT: Final = "dolphinrouting.dev/replay/v1"

DEFAULT_LAG_LIMIT_MS: Final = 200.0
"""Of the workload's time, for 99 of 100 requests: a fortieth of the usual TTFT limit of 8 s."""

_REASONS_SHOWN: Final = 5


@dataclass(frozen=True, eq=False)
class ReplayResult:
    """The scored requests of a replay and their answers; at least one."""

    requests: Requests
    is_scored: NDArray[np.bool_]
    answers: list[Answer]
    """Of all requests, in their order."""
    time_scale: float
    slo: Slo
    lag_limit_ms: float = DEFAULT_LAG_LIMIT_MS

    @property
    def scored(self) -> list[Answer]:
        """The answers that count."""
        return [self.answers[row] for row in np.flatnonzero(self.is_scored)]

    @property
    def lag_ms(self) -> Percentiles:
        """How late scored requests were sent, in milliseconds of the workload's time; infinite for what was not
        sent."""
        return Percentiles.of(np.array([answer.lag_s for answer in self.scored]) * self.time_scale * 1e3)

    @property
    def is_void(self) -> bool:
        """Whether the generator was too late for the result to be held against anything."""
        return not self.lag_ms.p99 <= self.lag_limit_ms

    def outcomes(self) -> Outcomes:
        """Return the scored requests as the simulator's are, arrivals being the times at which they were due.

        Latencies count from when a request was really sent. What a client cannot see is left at -1: the workers and
        what they reused and shipped.
        """
        rows = np.flatnonzero(self.is_scored)
        requests, answers = self.requests, self.scored
        arrival_s = requests.arrival_s[rows]
        sent_s = _column(answers, "sent_s")
        is_whole = np.array([answer.end == "whole" for answer in answers])
        with np.errstate(invalid="ignore"):
            first_s = arrival_s + (_column(answers, "first_token_s") - sent_s) * self.time_scale
            last_s = arrival_s + (_column(answers, "last_token_s") - sent_s) * self.time_scale
        unknown = np.full(len(rows), NONE, dtype=np.int64)
        prompt_tokens = requests.prompt_tokens[rows]
        prefill_cached, decode_cached, expected = _features(answers, prompt_tokens)
        return Outcomes(
            index=rows,
            arrival_s=arrival_s,
            prompt_tokens=prompt_tokens,
            output_tokens=np.where(is_whole, _tokens(answers), requests.output_tokens[rows]),
            expected_output_tokens=expected,
            path=np.array([_PATHS[answer.action] for answer in answers], dtype=np.int64),
            cluster=np.array([NONE if a.cluster is None else a.cluster for a in answers], dtype=np.int64),
            prefill_worker=unknown,
            decode_worker=unknown,
            prefill_cached_tokens=prefill_cached,
            decode_cached_tokens=decode_cached,
            reused_tokens=unknown,
            shipped_tokens=unknown,
            preemptions=unknown,
            phase=np.where(is_whole, FINISHED, SHIPPING),
            first_token_s=np.where(np.isfinite(first_s), first_s, np.inf),
            finish_s=np.where(is_whole, last_s, np.inf),
        )

    @property
    def other_lengths(self) -> int:
        """Whole answers that are longer or shorter than asked for."""
        rows = np.flatnonzero(self.is_scored)
        asked = self.requests.output_tokens[rows]
        return sum(a.end == "whole" and a.tokens != n for a, n in zip(self.scored, asked.tolist(), strict=True))

    @property
    def is_answered(self) -> bool:
        """Whether any request was."""
        return any(answer.end == "whole" for answer in self.scored)

    def count(self, end: str) -> int:
        """Return how many scored requests ended so."""
        return sum(answer.end == end for answer in self.scored)

    @property
    def reasons(self) -> list[tuple[str, int]]:
        """Why requests failed, the commonest first, and how many did."""
        return Counter(answer.reason for answer in self.scored if answer.end == "failed").most_common(_REASONS_SHOWN)


LEAST_MINUTES: Final = 5
"""Resampling fewer says nothing of what another time would have shown."""


@dataclass(frozen=True, eq=False)
class Attained:
    """Share of requests inside their SLO, and latencies."""

    requests: int
    attainment: float
    interval: Interval | None
    """At 95 %, from resampling minutes of traffic; none for fewer than :data:`LEAST_MINUTES` of them."""
    ttft_ms: Percentiles
    tpot_ms: Percentiles

    @classmethod
    def of(cls, outcomes: Outcomes, slo: Slo) -> Attained:
        """Sum up at least one outcome."""
        is_met = outcomes.is_met(slo)
        sums = block_sums([outcomes], [is_met])
        return cls(
            requests=len(outcomes),
            attainment=float(is_met.mean()),
            interval=mean_interval(sums) if len(sums) >= LEAST_MINUTES else None,
            ttft_ms=Percentiles.of(outcomes.ttft_ms),
            tpot_ms=Percentiles.of(outcomes.tpot_ms),
        )

    def document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "requests": self.requests,
            "attainment": self.attainment,
            "attainment_interval": None if self.interval is None else list(self.interval),
            "ttft_ms": percentiles_document(self.ttft_ms),
            "tpot_ms": percentiles_document(self.tpot_ms),
        }


def result_document(result: ReplayResult) -> dict[str, Any]:
    """Return a replay as JSON values. Milliseconds are of the workload's time; an infinite one is ``"infinity"``."""
    outcomes = result.outcomes()
    actions = Counter(answer.action for answer in result.scored)
    return {
        "format": FORMAT,
        "is_void": result.is_void,
        "time_scale": result.time_scale,
        "slo": result.slo.model_dump(mode="json"),
        **Attained.of(outcomes, result.slo).document(),
        "failed": result.count("failed"),
        "unfinished": result.count("unfinished"),
        "not_sent": result.count("not-sent"),
        "failures": [{"reason": reason, "requests": count} for reason, count in result.reasons],
        "other_lengths": result.other_lengths,
        "lag_ms": percentiles_document(result.lag_ms),
        "lag_limit_ms": result.lag_limit_ms,
        "local": actions["local"],
        "remote": actions["remote"],
        "decision_not_told": actions[None],
    }


def percentiles_document(percentiles: Percentiles) -> dict[str, float | str]:
    """Return percentiles as JSON values."""
    values = {"p50": percentiles.p50, "p90": percentiles.p90, "p99": percentiles.p99}
    return {name: value if np.isfinite(value) else "infinity" for name, value in values.items()}


_PATHS: Final = {"local": LOCAL, "remote": REMOTE, None: NONE}


def _column(answers: list[Answer], name: str) -> Floats:
    return np.array([getattr(answer, name) for answer in answers], dtype=np.float64)


def _tokens(answers: list[Answer]) -> Ints:
    # No token at all is no whole answer; 1 keeps the arithmetic of those defined.
    return np.array([max(answer.tokens, 1) for answer in answers], dtype=np.int64)


def _features(answers: list[Answer], prompt_tokens: Ints) -> tuple[Ints, Ints, Floats]:
    """Return what was cached on the two candidates, and the expected answers, as the router told them."""
    told = np.array([answer.features or (np.nan,) * 4 for answer in answers]).reshape(-1, 4)
    is_told = np.isfinite(told[:, 0])
    cached = prompt_tokens[:, None] - np.where(is_told[:, None], told[:, 1:3], 0.0).astype(np.int64)
    cached = np.where(is_told[:, None], cached, NONE)
    return cached[:, 0], cached[:, 1], np.where(is_told, told[:, 3], 0.0)
