"""A learned table before it meets real workers: real HTTP through the real router over emulated engines, held against
the simulation of the same arrivals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from dolphin_router.contract import RoutingTable, Slo, Split
from dolphin_router.routing import UNKNOWN_OUTPUT_TOKENS
from dolphin_search.preparation import Preparation
from dolphin_search.replay.answer import Answer
from dolphin_search.replay.generator import Replay, run_replays
from dolphin_search.replay.processes import ClusterPlan, running_clusters
from dolphin_search.replay.result import Attained, ReplayResult, result_document
from dolphin_search.replay.schedule import Schedule, as_sent
from dolphin_sim.episode import Episode, Window, run_episode
from dolphin_sim.outcomes import Outcomes
from dolphin_sim.output_length import predicted_output_tokens
from dolphin_sim.policy import Policy, as_routed, from_table
from dolphin_sim.simulation import Cluster
from dolphin_sim.workloads.requests import Floats, Requests

AGREEMENT: Final = 0.05
"""How far prediction and measurement may lie apart."""

_GRACE_S: Final = 30.0
"""Of the workload's time, after the last request was due."""


@dataclass(frozen=True)
class RehearsalPlan:
    """How much traffic, how fast, and how it is predicted."""

    window: Window = field(default_factory=lambda: Window(period_s=390.0, settle_s=120.0, tail_s=30.0))
    time_scale: float = 11.0
    """Emulated seconds in a second."""
    most_delay_s: float = 0.025
    """Seconds of the clock that HTTP, and reading a long prompt several times, add to a request on its way to the first
    token; they count ``time_scale`` times. Measured with idle engines on two cores, the quartiles: 6 to 11 ms for
    prompts below 1,000 tokens, 25 to 38 ms for those of 10,000 to 20,000, both remote."""
    simulations: int = 16
    """Near the load at which queues form, a few milliseconds decide which of two equal workers a prompt goes to, and
    much follows from that. So the prediction is taken over simulations in which each request is late by a random part
    of that delay."""


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """A prediction and a measurement of the same arrivals under the same table."""

    plan: RehearsalPlan
    split: Split
    rate_per_s: float
    slo: Slo
    simulated: Outcomes
    """With no request delayed."""
    delayed: list[Outcomes]
    """Of each simulation with delays."""
    result: ReplayResult
    stated_attainment: float
    """In the simulation, if the clients had stated what those of the workload do, instead of exact answer lengths."""

    @property
    def predicted(self) -> Attained:
        """In virtual time: over all simulations with delays, the interval being the range of their attainments."""
        attainments = [float(outcomes.is_met(self.slo).mean()) for outcomes in self.delayed]
        together = Attained.of(Outcomes.concatenate(self.delayed), self.slo)
        return replace(together, requests=len(self.simulated), interval=(min(attainments), max(attainments)))

    @property
    def undelayed_attainment(self) -> float:
        """In the simulation without delays."""
        return float(self.simulated.is_met(self.slo).mean())

    @property
    def measured(self) -> Attained:
        """Over HTTP."""
        return Attained.of(self.result.outcomes(), self.slo)

    @property
    def difference(self) -> float:
        """Measured minus predicted attainment."""
        return self.measured.attainment - self.predicted.attainment

    @property
    def agrees(self) -> bool:
        """Whether the two are close enough; without meaning where the result is void."""
        return abs(self.difference) <= AGREEMENT

    @property
    def other_decisions(self) -> float:
        """Share of requests that took another path than in the simulation."""
        return float((self.result.outcomes().path != self.simulated.path).mean())

    @property
    def other_verdicts(self) -> float:
        """Share of requests that kept the promise in one of the two only."""
        return float((self.result.outcomes().is_met(self.slo) != self.simulated.is_met(self.slo)).mean())


@dataclass(frozen=True, eq=False)
class Candidate:
    """A table to rehearse."""

    preparation: Preparation
    table: RoutingTable
    table_path: Path
    """The same table in a file."""


class Rehearser:
    """Rehearses tables side by side.

    Args:
        candidates: with at least one scored request each.
        plan: how much traffic, and how fast.
    """

    def __init__(self, candidates: Sequence[Candidate], plan: RehearsalPlan) -> None:
        self._plan = plan
        self._candidates = candidates
        self._episodes = [_episode(candidate.preparation, plan.window) for candidate in candidates]

    @property
    def requests(self) -> int:
        """How many will be sent at most."""
        return sum(len(episode.requests) for episode in self._episodes)

    def run(self, on_end: Callable[[Answer], None] = lambda answer: None) -> list[Rehearsal]:
        """Simulate, then measure.

        Args:
            on_end: called after each request that was sent.

        Raises:
            ProcessFailed: router or engines cannot run, or do not last.
            ValueError: no request arrives in the scored period.
        """
        plan = self._plan
        plans = [
            ClusterPlan(
                split=candidate.preparation.cluster.split,
                profile=candidate.preparation.cluster.profile,
                time_scale=plan.time_scale,
                block_tokens=episode.requests.block_tokens,
                table=candidate.table_path,
            )
            for candidate, episode in zip(self._candidates, self._episodes, strict=True)
        ]
        with running_clusters(plans) as clusters:
            replays = [
                Replay(Schedule(episode.requests, time_scale=plan.time_scale), address, episode.is_scored)
                for episode, (_, address) in zip(self._episodes, clusters, strict=True)
            ]
            answers = run_replays(replays, grace_s=_GRACE_S / plan.time_scale, on_end=on_end)
            for cluster, _ in clusters:
                cluster.check()
        return [
            self._rehearsal(candidate, episode, own)
            for candidate, episode, own in zip(self._candidates, self._episodes, answers, strict=True)
        ]

    def _rehearsal(self, candidate: Candidate, episode: Episode, answers: list[Answer]) -> Rehearsal:
        preparation = candidate.preparation
        cluster, slo, policy = preparation.cluster, preparation.slo, as_routed(from_table(candidate.table.decider))

        expected = _expected_by_router(candidate.table, as_sent(episode.requests))
        stated = preparation.source.predictor.expected_output_tokens(episode.requests, seed=episode.seed)
        random = np.random.default_rng(episode.seed)
        most_delay_s = self._plan.most_delay_s * self._plan.time_scale

        def simulated(expected_output_tokens: Floats, *, delays_s: Floats | None = None) -> Outcomes:
            known = replace(episode, expected_output_tokens=expected_output_tokens)
            return _run_delayed(cluster, known, policy, np.zeros(len(stated)) if delays_s is None else delays_s)

        return Rehearsal(
            plan=self._plan,
            split=cluster.split,
            rate_per_s=preparation.source.rate_per_s,
            slo=slo,
            simulated=simulated(expected),
            delayed=[
                simulated(expected, delays_s=random.uniform(0.0, most_delay_s, len(stated)))
                for _ in range(self._plan.simulations)
            ],
            result=ReplayResult(episode.requests, episode.is_scored, answers, self._plan.time_scale, slo),
            stated_attainment=float(simulated(stated).is_met(slo).mean()),
        )


def rehearsal_document(rehearsal: Rehearsal) -> dict[str, Any]:
    """Return a rehearsal as JSON values. ``difference`` is in attainment, measured minus predicted."""
    window = rehearsal.plan.window
    return {
        "time_scale": rehearsal.plan.time_scale,
        "settle_s": window.settle_s,
        "period_s": window.period_s,
        "rate_per_s": rehearsal.rate_per_s,
        "predicted": rehearsal.predicted.document(),
        "simulations": rehearsal.plan.simulations,
        "most_delay_s": rehearsal.plan.most_delay_s,
        "predicted_attainment_without_delays": rehearsal.undelayed_attainment,
        "predicted_attainment_with_stated_limits": rehearsal.stated_attainment,
        "measured": result_document(rehearsal.result),
        "difference": rehearsal.difference,
        "agreement": AGREEMENT,
        "agrees": None if rehearsal.result.is_void else rehearsal.agrees,
        "other_decisions": rehearsal.other_decisions,
        "other_verdicts": rehearsal.other_verdicts,
    }


def _episode(preparation: Preparation, window: Window) -> Episode:
    source = replace(preparation.source, window=window)
    [episode] = source.scored_episodes("test", 1)
    return episode


def _expected_by_router(table: RoutingTable, requests: Requests) -> Floats:
    model = table.output_model
    return np.full(len(requests), UNKNOWN_OUTPUT_TOKENS) if model is None else predicted_output_tokens(model, requests)


def _run_delayed(cluster: Cluster, episode: Episode, policy: Policy, delays_s: Floats) -> Outcomes:
    """Serve an episode whose requests reach the router late; latencies count from when they were due."""
    late_s = episode.requests.arrival_s + delays_s
    order = np.argsort(late_s, kind="stable")
    late = replace(
        episode,
        requests=Requests.concatenate([replace(episode.requests, arrival_s=late_s)]),
        expected_output_tokens=episode.expected_output_tokens[order],
        is_scored=episode.is_scored[order],
    )
    outcomes = run_episode(cluster, late, policy)
    return replace(outcomes, arrival_s=episode.requests.arrival_s[order][late.is_scored])
