"""The arguments that say how a table is learned."""

from __future__ import annotations

import argparse

from dolphin_search.clustering import CLUSTERING_METHODS
from dolphin_search.clustering.fit import MOST_CLUSTERS
from dolphin_search.learning import DEFAULT_ROUNDS, LearningSettings
from dolphin_search.output_length.predictors import DEFAULT_ACCURACY, PREDICTOR_KINDS
from dolphin_search.preparation import PreparationSettings
from dolphin_search.samplers import REWARDS, ScanThenEpsilonGreedy
from dolphin_sim.cli import values


def add_expected_length_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where expected answer lengths come from."""
    group = parser.add_argument_group("expected answer lengths")
    group.add_argument(
        "--expected-lengths",
        choices=PREDICTOR_KINDS,
        help="trained: the table's output model; simulated: a classifier that is right as often as --accuracy says; "
        "perfect; none (default: trained where the workload has inputs, simulated for bare traces)",
    )
    group.add_argument(
        "--accuracy",
        metavar="SHARE",
        type=_share,
        default=DEFAULT_ACCURACY,
        help="of the simulated classifier (default: %(default)g)",
    )


def add_settings_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments; each has a default."""
    group = parser.add_argument_group("clusters")
    group.add_argument(
        "--clusters", metavar="K", type=_clusters, default=8, help=f"1 to {MOST_CLUSTERS} (default: %(default)s)"
    )
    group.add_argument(
        "--clustering",
        choices=CLUSTERING_METHODS,
        default="kmeans",
        help="kmeans as published; weighted-kmeans counts tokens instead of requests (default: %(default)s)",
    )
    add_expected_length_arguments(parser)
    group = parser.add_argument_group("search")
    group.add_argument(
        "--policy",
        choices=("bits",),
        default="bits",
        help="class of policy to learn: one action for each cluster (default: %(default)s)",
    )
    group.add_argument(
        "--rounds",
        metavar="N",
        type=values.count,
        default=DEFAULT_ROUNDS,
        help="tables to measure (default: %(default)s)",
    )
    group.add_argument(
        "--periods-per-round",
        metavar="N",
        type=values.count,
        default=LearningSettings.periods_per_round,
        help="over which each table is measured (default: %(default)s)",
    )
    group.add_argument(
        "--arrivals",
        choices=("common", "fresh"),
        default="common",
        help="common: all rounds see the same arrivals; fresh: each its own, as live (default: %(default)s)",
    )
    group.add_argument(
        "--reward",
        choices=REWARDS,
        default="cluster",
        help="what the scan compares: the cluster's own attainment as published, attainment over all requests, or the "
        "smooth latency score (default: %(default)s)",
    )
    group.add_argument("--no-scan", action="store_true", help="leave out the scan of the clusters")
    group.add_argument(
        "--epsilon",
        metavar="SHARE",
        type=_share,
        default=ScanThenEpsilonGreedy.epsilon,
        help="probability to explore right after the scan (default: %(default)g)",
    )


def settings_from_arguments(arguments: argparse.Namespace) -> LearningSettings:
    """Return the settings that the parsed arguments name."""
    return LearningSettings(
        preparation=PreparationSettings(
            clusters=arguments.clusters,
            clustering=arguments.clustering,
            predictor=arguments.expected_lengths,
            accuracy=arguments.accuracy,
        ),
        sampler=ScanThenEpsilonGreedy(
            seed=arguments.seed,
            reward=arguments.reward,
            scan=not arguments.no_scan,
            epsilon=arguments.epsilon,
            least_epsilon=min(arguments.epsilon, ScanThenEpsilonGreedy.least_epsilon),
        ),
        rounds=arguments.rounds,
        arrivals=arguments.arrivals,
        periods_per_round=arguments.periods_per_round,
    )


def _share(text: str) -> float:
    value = values.number_from_0(text)
    if value > 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is above 1")
    return value


def _clusters(text: str) -> int:
    count = values.count(text)
    if count > MOST_CLUSTERS:
        raise argparse.ArgumentTypeError(f"{text!r} is above {MOST_CLUSTERS}")
    return count
