"""A cluster in virtual time: requests in, outcomes out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from dolphin_router.contract import Split
from dolphin_sim.engine.decodes import NEVER_STEP
from dolphin_sim.engine.loop import advance
from dolphin_sim.engine.prefix_cache import empty_cache
from dolphin_sim.engine.routing import NO_CLUSTER, Scratch
from dolphin_sim.engine.state import (
    CLOCK,
    FINISHED,
    NONE,
    QUEUES,
    REJECTED,
    REQUEST,
    WORKER,
    Engine,
    Floats,
    Records,
)
from dolphin_sim.hardware.law import engine_settings
from dolphin_sim.hardware.profile import HardwareProfile
from dolphin_sim.outcomes import Outcomes
from dolphin_sim.policy import Policy
from dolphin_sim.workloads.requests import Requests


@dataclass(frozen=True)
class Cluster:
    """Workers of one kind of hardware."""

    profile: HardwareProfile
    split: Split


class Simulation:
    """One cluster and the requests on it.

    Offer requests in order of arrival, advance the clock, collect what has ended; memory holds the requests that have
    not. The policy may be replaced between two advances.

    Args:
        cluster: the workers.
        policy: what the router follows.
        block_tokens: block size of the workload.
        seed: for rules and ties that are random.
    """

    def __init__(self, cluster: Cluster, policy: Policy, *, block_tokens: int, seed: int = 0) -> None:
        self.cluster = cluster
        self.policy = policy
        self._random = np.random.default_rng(seed)
        self._offered = 0
        self._reached_s = 0.0
        settings = engine_settings(cluster.profile, cluster.split, block_tokens=block_tokens)
        workers = settings.prefill_workers + settings.decode_workers
        self._scratch = Scratch(np.zeros(workers), np.zeros(workers), np.zeros(workers))
        self._engine = Engine(
            settings=settings,
            block_ids=np.zeros(0, dtype=np.int64),
            requests=_records(0, REQUEST),
            workers=_idle_workers(workers),
            running=np.zeros((workers, settings.max_running), dtype=np.int64),
            prefilling=np.zeros((workers, settings.max_running), dtype=np.int64),
            queues=np.full((QUEUES, workers, 2), NONE, dtype=np.int64),
            hbm=empty_cache(workers, settings.kv_capacity_tokens // block_tokens),
            host=empty_cache(workers, settings.host_blocks),
            transfers=np.zeros(0, dtype=np.int64),
            clock=_clock_at_zero(),
        )

    @property
    def now_s(self) -> float:
        """Time of the latest event."""
        return float(self._engine.clock[0].now_s)

    @property
    def events(self) -> int:
        """Events so far: arrivals, transfers, and steps or runs of decode steps."""
        return int(self._engine.clock[0].events)

    @property
    def engine(self) -> Engine:
        """The arrays, to be read."""
        return self._engine

    def offer(self, requests: Requests, expected_output_tokens: Floats | None = None) -> None:
        """Add requests that arrive after those offered before.

        Args:
            requests: arrivals, not before the latest event.
            expected_output_tokens: what the output-length model says of each; 0 for all when there is none.

        Raises:
            ValueError: the block size differs, or a request arrives in the past or before one offered earlier.
        """
        if requests.block_tokens != self._engine.settings.block_tokens:
            raise ValueError(
                f"the workload has blocks of {requests.block_tokens} tokens, the cluster of "
                f"{self._engine.settings.block_tokens}: they must be equal"
            )
        if len(requests) == 0:
            return
        earliest_s = max(self.now_s, *self._engine.requests["arrival_s"], 0.0)
        if requests.arrival_s[0] < earliest_s:
            raise ValueError(f"a request arrives at {requests.arrival_s[0]:.3f} s, before {earliest_s:.3f} s")
        added = _records(len(requests), REQUEST)
        for name in ("arrival_s", "prompt_tokens", "output_tokens"):
            added[name] = getattr(requests, name)
        if expected_output_tokens is not None:
            added["expected_output_tokens"] = expected_output_tokens
        added["block_start"] = requests.block_offsets[:-1] + len(self._engine.block_ids)
        added["block_stop"] = requests.block_offsets[1:] + len(self._engine.block_ids)
        added["uniform"] = self._random.random(len(requests))
        added["index"] = np.arange(self._offered, self._offered + len(requests))
        added["cluster"] = NO_CLUSTER
        added["next"] = NONE
        added["first_token_s"] = added["finish_s"] = np.inf
        self._offered += len(requests)
        everything = np.concatenate([self._engine.requests, added]).view(np.recarray)
        self._engine = self._engine._replace(
            requests=everything,
            block_ids=np.concatenate([self._engine.block_ids, requests.block_ids]),
            transfers=_grown(self._engine.transfers, len(everything)),
        )

    def advance(self, until_s: float = math.inf) -> None:
        """Let all happen that happens until then; without a limit, until every request has ended."""
        advance(self._engine, self.policy.decider, self._scratch, until_s)
        self._reached_s = max(self._reached_s, until_s if math.isfinite(until_s) else self.now_s)

    def outcomes(self) -> Outcomes:
        """Return how every request stands that has not been collected."""
        outcomes = Outcomes.from_records(self._engine.requests)
        # The engine writes a first token down when the step that yields it begins.
        is_ahead = outcomes.first_token_s > self._reached_s
        return replace(outcomes, first_token_s=np.where(is_ahead, np.inf, outcomes.first_token_s))

    def collect(self) -> Outcomes:
        """Return the requests that have ended, in order of arrival, and forget them."""
        requests = self._engine.requests
        is_ended = np.isin(requests["phase"], (FINISHED, REJECTED))
        ended = Outcomes.from_records(requests[is_ended])
        self._forget(is_ended)
        return ended

    def _forget(self, is_ended: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        """Renumber the requests that stay."""
        old = self._engine
        requests = old.requests[~is_ended].view(np.recarray)
        # One longer, so that NONE, the last, stays NONE.
        number = np.full(len(is_ended) + 1, NONE, dtype=np.int64)
        number[:-1][~is_ended] = np.arange(len(requests))
        lengths = requests["block_stop"] - requests["block_start"]
        parts = [old.block_ids[request.block_start : request.block_stop] for request in requests]
        requests["block_stop"] = np.cumsum(lengths)
        requests["block_start"] = requests["block_stop"] - lengths
        requests["next"] = number[requests["next"]]
        clock = old.clock.copy()
        clock[0].next_arrival -= int(is_ended[: clock[0].next_arrival].sum())
        self._engine = old._replace(
            requests=requests,
            block_ids=np.concatenate([np.zeros(0, dtype=np.int64), *parts]),
            running=_renumbered(old.running, number, old.workers["running_count"]),
            prefilling=_renumbered(old.prefilling, number, old.workers["prefilling_count"]),
            queues=number[old.queues],
            transfers=number[old.transfers[: len(requests)]],
            clock=clock,
        )


def simulate(
    cluster: Cluster,
    requests: Requests,
    policy: Policy,
    *,
    expected_output_tokens: Floats | None = None,
    seed: int = 0,
    until_s: float = math.inf,
) -> Outcomes:
    """Run one window of traffic on an empty cluster and return the outcome of each request, in order of arrival."""
    simulation = Simulation(cluster, policy, block_tokens=requests.block_tokens, seed=seed)
    simulation.offer(requests, expected_output_tokens)
    simulation.advance(until_s)
    return simulation.outcomes()


def _records(count: int, dtype: np.dtype[np.void]) -> Records:
    return np.zeros(count, dtype=dtype).view(np.recarray)


def _idle_workers(count: int) -> Records:
    workers = _records(count, WORKER)
    workers["step_end_s"] = np.inf
    workers["first_final_step"] = NEVER_STEP
    return workers


def _clock_at_zero() -> Records:
    clock = _records(1, CLOCK)
    clock["next_transfer_end_s"] = np.inf
    return clock


def _grown(array: np.ndarray[tuple[int], np.dtype[np.int64]], size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    grown = np.zeros(size, dtype=np.int64)
    grown[: len(array)] = array
    return grown


def _renumbered(
    lists: np.ndarray[tuple[int, int], np.dtype[np.int64]],
    number: np.ndarray[tuple[int], np.dtype[np.int64]],
    counts: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Renumber the first ``counts`` entries of each row; the others are left over from before."""
    renumbered = lists.copy()
    for row, count in zip(renumbered, counts, strict=True):
        row[:count] = number[row[:count]]
    return renumbered
