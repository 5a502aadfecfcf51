"""The quantity that a search makes large."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, get_args

from dolphin_search.environments.base import Actions
from dolphin_search.measurement import Measurement
from dolphin_search.samplers.base import Round

RewardName = Literal["cluster", "global", "log-latency"]
REWARDS: tuple[RewardName, ...] = get_args(RewardName)


def table_reward(measurement: Measurement, reward: RewardName) -> float:
    """Return what a period says of a whole table: attainment over all requests, or the smooth score."""
    return measurement.log_latency if reward == "log-latency" else measurement.attainment


def arm_reward(measurement: Measurement, reward: RewardName, cluster: int) -> float:
    """Return what a period says of one cluster's action.

    As published that is the attainment of the cluster's own requests. It does not see what a local prefill does to the
    decodes of others; the other two rewards do.
    """
    if reward == "cluster":
        return measurement.cluster_attainment[cluster]
    return table_reward(measurement, reward)


def mean_rewards(rounds: Sequence[Round], reward: RewardName) -> dict[Actions, float]:
    """Return the mean reward of each table that was measured, in the order in which they first were."""
    rewards: defaultdict[Actions, list[float]] = defaultdict(list)
    for entry in rounds:
        rewards[entry.actions].append(table_reward(entry.measurement, reward))
    return {actions: sum(values) / len(values) for actions, values in rewards.items()}


def best_table(rounds: Sequence[Round], reward: RewardName) -> Actions:
    """Return the table with the highest mean reward, the earliest of equal ones."""
    means = mean_rewards(rounds, reward)
    return max(means, key=means.__getitem__)
