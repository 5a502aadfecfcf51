"""What a search starts from: the load, a history under it, length classes, and clusters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dolphin_router.contract import OutputModel, Slo
from dolphin_search.clustering import ClusteringMethod, Clusters, fit_clusters
from dolphin_search.features import Matrix, feature_matrix
from dolphin_search.output_length.classes import learn_classes
from dolphin_search.output_length.predictors import DEFAULT_ACCURACY, PredictorKind, make_predictor
from dolphin_search.output_length.training import train_output_model
from dolphin_search.saturation import saturated_rate
from dolphin_search.traffic import EpisodeSource
from dolphin_sim import policy
from dolphin_sim.episode import Episode, run_episode
from dolphin_sim.outcomes import Outcomes
from dolphin_sim.policy import Policy
from dolphin_sim.problem import Problem
from dolphin_sim.simulation import Cluster
from dolphin_sim.workloads import Requests

SATURATION_EPISODES = 3


@dataclass(frozen=True)
class PreparationSettings:
    """How clusters are made. The defaults are the published choices, where those are known."""

    clusters: int = 8
    clustering: ClusteringMethod = "kmeans"
    initialisations: int = 10
    predictor: PredictorKind | None = None
    """Where expected answer lengths come from; None for the trained model where rows have inputs, else a simulated
    one."""
    accuracy: float = DEFAULT_ACCURACY
    """Of the simulated classifier."""
    history_episodes: int = 3
    saturation_target: float = 0.8
    """Attainment of always-remote at the load that is searched for when no rate is given."""


@dataclass(frozen=True, eq=False)
class Preparation:
    """All that is settled before the first table is measured."""

    cluster: Cluster
    slo: Slo
    source: EpisodeSource
    predictor_kind: PredictorKind
    output_model: OutputModel
    clusters: Clusters
    features: Matrix
    """Of the history, in tokens: what the clusters were made from."""
    workload_digest: str

    @property
    def policy(self) -> Policy:
        """The clusters with every action remote."""
        return policy.from_table(self.clusters.decider(["remote"] * len(self.clusters)))


def prepare(
    problem: Problem, settings: PreparationSettings, *, say: Callable[[str], None] = lambda line: None
) -> Preparation:
    """Find the load if none is given, record a history, learn length classes and clusters.

    The history is recorded while each request draws its path, so that both kinds of worker have something cached.

    Args:
        problem: the case.
        settings: how.
        say: told what was found, a line at a time.

    Raises:
        ValueError: the workload gives no requests, or no load saturates the cluster.
    """
    source = EpisodeSource(problem.workload, problem.rate_per_s or 1.0, problem.window, problem.seed)
    if problem.rate_per_s is None:
        rate_per_s = _saturated(problem, source, settings.saturation_target)
        source = source.at_rate(rate_per_s)
        say(f"always-remote attains {settings.saturation_target:.0%} at {rate_per_s:.3g} requests/s: searching there")
    history = source.scored_episodes("history", settings.history_episodes)
    requests = _recorded(history)
    classes = learn_classes(requests.output_tokens)
    model = train_output_model(requests, classes)
    kind, predictor = make_predictor(
        settings.predictor, requests=requests, classes=classes, model=model, accuracy=settings.accuracy
    )
    source = source.with_predictor(predictor)
    outcomes = Outcomes.concatenate(
        [
            run_episode(problem.cluster, source.with_expected_lengths(episode), policy.random_path())
            for episode in history
        ]
    )
    features = feature_matrix(outcomes)
    clusters = fit_clusters(
        features,
        count=settings.clusters,
        method=settings.clustering,
        initialisations=settings.initialisations,
        seed=problem.seed,
    )
    say(f"{len(features)} requests of history, answers {_percent(model.accuracy)} in the class guessed from inputs")
    if len(clusters) < settings.clusters:
        say(f"only {len(clusters)} clusters instead of {settings.clusters}: the history has no more distinct requests")
    return Preparation(
        cluster=problem.cluster,
        slo=problem.slo,
        source=source,
        predictor_kind=kind,
        output_model=model,
        clusters=clusters,
        features=features,
        workload_digest=requests.digest(),
    )


def _saturated(problem: Problem, source: EpisodeSource, target: float) -> float:
    rate_per_s = saturated_rate(
        problem.cluster,
        problem.slo,
        lambda rate_per_s: source.at_rate(rate_per_s).episodes("history", SATURATION_EPISODES),
        policy.always_remote(),
        target=target,
        first_guess_per_s=source.rate_per_s,
    )
    if rate_per_s == 0.0 or math.isinf(rate_per_s):
        loads = "no load, not even a light one" if rate_per_s == 0.0 else "every load that was tried"
        raise ValueError(
            f"always-remote attains {target:.0%} under {loads}: change the latency limits, or give the rate to learn at"
        )
    return rate_per_s


def _recorded(history: list[Episode]) -> Requests:
    """Return the requests of all episodes in one. Their block ids clash, and none is looked at."""
    return Requests.concatenate([episode.requests.select(episode.is_scored) for episode in history])


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
