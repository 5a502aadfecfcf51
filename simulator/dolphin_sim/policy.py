"""Policies that the simulated router can follow: tables, and the rules of deployed routers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dolphin_router.assignment import whitener
from dolphin_router.contract import Bits
from dolphin_router.decision import Action
from dolphin_sim.engine import routing
from dolphin_sim.engine.routing import Decider


@dataclass(frozen=True)
class Policy:
    """A named decider."""

    name: str
    decider: Decider
    parameters: tuple[float, ...] = ()

    def describe(self) -> str:
        """Return the name with the values of its parameters, if it has any."""
        values = ", ".join(f"{value:g}" for value in self.parameters)
        return f"{self.name} ({values})" if values else self.name


def _rule(name: str, kind: int, *parameters: float, worker_choice: int = routing.OUR_CHOICE) -> Policy:
    padded = np.zeros(4)
    padded[: len(parameters)] = parameters
    decider = Decider(
        kind=kind,
        worker_choice=worker_choice,
        parameters=padded,
        transform=np.zeros((2, 4)),
        clusters=np.zeros((1, 15)),
        actions=np.zeros(1, dtype=np.int64),
    )
    return Policy(name, decider, tuple(float(value) for value in parameters))


def always_local() -> Policy:
    """Every request is prefilled on its decode worker."""
    return _rule("always-local", routing.ALWAYS_LOCAL)


def always_remote() -> Policy:
    """Every request is prefilled on a prefill worker."""
    return _rule("always-remote", routing.ALWAYS_REMOTE)


def random_path(remote_share: float = 0.5) -> Policy:
    """Every request draws its path: what a history is recorded under, since both caches then hold something."""
    return _rule("random", routing.RANDOM, remote_share)


def by_length(threshold_tokens: float, *, name: str = "tuned-length") -> Policy:
    """Prompts of at least so many tokens go remote."""
    return _rule(name, routing.LENGTH, threshold_tokens)


def by_effective_length(threshold_tokens: float, *, name: str = "tuned-effective-length") -> Policy:
    """Prompts with at least so many tokens not cached on the decode worker go remote."""
    return _rule(name, routing.EFFECTIVE_LENGTH, threshold_tokens)


def by_cost(price: float, *, name: str = "tuned-cost") -> Policy:
    """The path with the sooner predicted first token, a price on disturbed decodes; reads exact queues."""
    return _rule(name, routing.COST, price)


def dynamo_default() -> Policy:
    """Dynamo with conditional disaggregation off: always remote, workers by Dynamo's cost."""
    return _rule("dynamo-default", routing.ALWAYS_REMOTE, worker_choice=routing.DYNAMO_CHOICE)


def dynamo_isl_bounding(
    length_threshold_tokens: float = 2048, ratio_threshold: float = 0.7, *, name: str = "dynamo-isl-bounding"
) -> Policy:
    """Dynamo's conditional disaggregation by length; the defaults are Dynamo's."""
    return _rule(
        name,
        routing.DYNAMO_ISL_BOUNDING,
        length_threshold_tokens,
        ratio_threshold,
        worker_choice=routing.DYNAMO_CONDITIONAL_CHOICE,
    )


def dynamo_isl_or_load(
    length_threshold_tokens: float = 2048,
    ratio_threshold: float = 0.7,
    busy_threshold: float = 1.0,
    *,
    name: str = "dynamo-isl-or-load",
) -> Policy:
    """Dynamo's rule by length or load. Dynamo has no default for the busy threshold; one full step is our choice."""
    return _rule(
        name,
        routing.DYNAMO_ISL_OR_LOAD,
        length_threshold_tokens,
        ratio_threshold,
        busy_threshold,
        worker_choice=routing.DYNAMO_CONDITIONAL_CHOICE,
    )


def llm_d(uncached_threshold_tokens: float = 16, *, name: str = "llm-d") -> Policy:
    """llm-d's prefix-based decider; 16 is the value in its shipped configuration."""
    return _rule(name, routing.LLM_D, uncached_threshold_tokens)


RULES = {
    "always-local": always_local,
    "always-remote": always_remote,
    "random": random_path,
    "dynamo-default": dynamo_default,
    "dynamo-isl-bounding": dynamo_isl_bounding,
    "dynamo-isl-or-load": dynamo_isl_or_load,
    "llm-d": llm_d,
}
"""Rules that need no tuning, by name."""


def from_table(bits: Bits, *, name: str = "learned") -> Policy:
    """Return the policy of a table's decider."""
    mixture = bits.clustering.kind == "gaussian-mixture"
    clusters = np.zeros((len(bits.clusters), 15))
    for row, cluster in zip(clusters, bits.clusters, strict=True):
        if mixture:
            assert cluster.weight is not None
            assert cluster.precision_cholesky is not None
            row[:] = whitener(cluster.centre, cluster.precision_cholesky, cluster.weight)
        else:
            row[:4] = cluster.centre
    decider = Decider(
        kind=routing.BITS_BY_MIXTURE if mixture else routing.BITS_BY_CENTRE,
        worker_choice=routing.OUR_CHOICE,
        parameters=np.zeros(4),
        transform=np.array([bits.transform.mean, bits.transform.scale], dtype=np.float64),
        clusters=clusters,
        actions=np.array([int(Action.from_text(cluster.action)) for cluster in bits.clusters], dtype=np.int64),
    )
    return Policy(name, decider)


def with_actions(policy: Policy, actions: tuple[int, ...], *, name: str | None = None) -> Policy:
    """Return the same clusters with other bits."""
    decider = policy.decider._replace(actions=np.array(actions, dtype=np.int64))
    return Policy(name or policy.name, decider)


def as_routed(policy: Policy) -> Policy:
    """Return a policy with our choice of workers that knows of queues what a router knows by itself.

    That is the uncached prompt tokens it has sent to each worker, until the worker answers; a simulated router sees
    besides how far each prefill is, and what it found in the cache when it was scheduled.
    """
    return Policy(policy.name, policy.decider._replace(worker_choice=routing.OUR_CHOICE_BY_DISPATCH), policy.parameters)
