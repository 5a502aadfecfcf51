"""From a problem to a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np

from dolphin_router.contract import (
    FORMAT,
    Provenance,
    Reward,
    Rewards,
    RoutingTable,
    Score,
    TableContent,
    seal,
)
from dolphin_router.decision import Action
from dolphin_router.features import FEATURE_NAMES
from dolphin_search.checkpoint import CheckpointFile, JsonValue, fingerprint
from dolphin_search.environments import Arrivals, SimulatedEnvironment
from dolphin_search.output_length.predictors import expected_accuracy
from dolphin_search.preparation import Preparation, PreparationSettings
from dolphin_search.samplers import Round, ScanThenEpsilonGreedy
from dolphin_search.samplers.rewards import arm_reward
from dolphin_search.study import Study
from dolphin_sim.problem import Problem

DEFAULT_ROUNDS = 80


@dataclass(frozen=True)
class LearningSettings:
    """How a table is learned."""

    preparation: PreparationSettings = field(default_factory=PreparationSettings)
    sampler: ScanThenEpsilonGreedy = field(default_factory=ScanThenEpsilonGreedy)
    rounds: int = DEFAULT_ROUNDS
    arrivals: Arrivals = "common"
    periods_per_round: int = 4
    """In simulation a period costs milliseconds, and one alone says too little of a table."""


def search_fingerprint(problem: Problem, settings: LearningSettings) -> str:
    """Return a hash of all that a search's rounds depend on, its number of rounds apart: more may be asked for
    later."""
    described: dict[str, JsonValue] = {
        "profile": problem.cluster.profile.model_dump(mode="json"),
        "split": str(problem.cluster.split),
        "workload": problem.workload.name,
        "traffic": problem.workload.episode(rate_per_s=1.0, duration_s=60.0, seed=problem.seed, part="train").digest(),
        "slo": problem.slo.model_dump(mode="json"),
        "rate_per_s": problem.rate_per_s,
        "seed": problem.seed,
        "window": asdict(problem.window),
        "preparation": asdict(settings.preparation),
        "sampler": asdict(settings.sampler),
        "arrivals": settings.arrivals,
        "periods_per_round": settings.periods_per_round,
    }
    return fingerprint(described)


def search(
    preparation: Preparation,
    settings: LearningSettings,
    *,
    checkpoint: CheckpointFile | None = None,
    rounds: list[Round] | None = None,
    on_round: Callable[[Round], None] | None = None,
) -> Study:
    """Run the study of a preparation in simulation and return it.

    Args:
        preparation: load, clusters and SLO.
        settings: how to search.
        checkpoint: where the rounds are kept.
        rounds: of a checkpoint, to go on from.
        on_round: told of each round.
    """
    environment = SimulatedEnvironment(
        cluster=preparation.cluster,
        slo=preparation.slo,
        clusters=preparation.policy,
        source=preparation.source,
        arrivals=settings.arrivals,
        periods_per_round=settings.periods_per_round,
    )
    study = Study(
        clusters=len(preparation.clusters),
        sampler=settings.sampler,
        environment=environment,
        checkpoint=checkpoint,
        rounds=rounds,
    )
    study.run(settings.rounds, on_round)
    return study


def make_table(
    preparation: Preparation,
    settings: LearningSettings,
    study: Study,
    *,
    scores: dict[str, Score] | None = None,
) -> RoutingTable:
    """Return the sealed table of a study. Equal inputs give equal tables, up to the time."""
    source = preparation.source
    actions = study.best()
    content = TableContent(
        format=FORMAT,
        routing_policy=None,
        split=preparation.cluster.split,
        slo=preparation.slo,
        features=FEATURE_NAMES,
        decider=preparation.clusters.decider(
            [Action(action).text for action in actions],
            cluster_rewards(study.rounds, settings.sampler, len(actions)),
        ),
        output_model=preparation.output_model,
        provenance=Provenance(
            sampler=settings.sampler.name,
            sampler_settings=settings.sampler.settings,
            reward=settings.sampler.reward,
            seed=source.seed,
            rounds=len(study.rounds),
            periods_per_round=settings.periods_per_round,
            period_s=source.window.period_s,
            settle_s=source.window.settle_s,
            arrivals=settings.arrivals,
            arrival_rate_per_s=source.rate_per_s,
            environment="simulated",
            hardware_profile=preparation.cluster.profile.name,
            workload=source.workload.name,
            workload_digest=preparation.workload_digest,
            expected_lengths=preparation.predictor_kind,
            expected_lengths_accuracy=expected_accuracy(
                preparation.predictor_kind, preparation.output_model, stated=settings.preparation.accuracy
            ),
            clustering_initialisations=settings.preparation.initialisations,
            scores=scores or {},
        ),
        created_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        software_version=version("dolphin-routing"),
    )
    return seal(content)


def cluster_rewards(rounds: Sequence[Round], sampler: ScanThenEpsilonGreedy, clusters: int) -> list[Rewards]:
    """Return what was measured of each cluster's two actions, over all rounds in which each was in force.

    Rounds differ in the other clusters' actions too, so the spread holds more than noise.
    """
    return [
        Rewards(
            local=_reward(rounds, sampler, cluster, Action.LOCAL),
            remote=_reward(rounds, sampler, cluster, Action.REMOTE),
        )
        for cluster in range(clusters)
    ]


def _reward(rounds: Sequence[Round], sampler: ScanThenEpsilonGreedy, cluster: int, action: Action) -> Reward | None:
    # A table that was measured again on the same arrivals counts once.
    values = [
        arm_reward(entry.measurement, sampler.reward, cluster)
        for entry in dict.fromkeys(rounds)
        if entry.actions[cluster] == action
    ]
    if not values:
        return None
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return Reward(mean=float(np.mean(values)), standard_error=error, periods=len(values))


def default_checkpoint_path(table_path: Path) -> Path:
    """Return where a search keeps its rounds unless told otherwise: beside its table."""
    return table_path.with_name(f"{table_path.name}.checkpoint")
