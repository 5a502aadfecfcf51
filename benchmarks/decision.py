"""How long one decision on a loaded table takes, beside a rule written by hand.

The policies take turns, so that a machine that slows down slows all of them; each figure is the median over the turns.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence

from dolphin_router.contract import (
    FORMAT,
    Bits,
    Cluster,
    GaussianMixture,
    KMeans,
    PolicyReference,
    Provenance,
    Rewards,
    RoutingTable,
    Slo,
    Split,
    TableContent,
    Transform,
    seal,
)
from dolphin_router.decision import Action, Decision
from dolphin_router.features import FEATURE_NAMES, Features
from dolphin_router.load import IDLE, Load
from dolphin_router.policies import policy_from_table

SEED = 1
REQUESTS = 1000
LIMITS_US = {"k8_us": 15.0, "k16_us": 25.0, "mixture_k8_us": 15.0, "mixture_k16_us": 25.0}

Decide = Callable[[Features, Load], Decision]


def length_rule(features: Features, load: Load) -> Decision:
    """The rule that people write by hand: long uncached prompts go to the prefill workers."""
    if features.decode_effective_tokens > 2000:
        return Decision(Action.REMOTE, 0, "long", 0.0)
    return Decision(Action.LOCAL, 0, "short", 0.0)


def random_table(*, clusters: int, mixture: bool) -> RoutingTable:
    """Return a table with random centres and, for a mixture, random full covariances."""
    generator = random.Random(SEED)
    return seal(
        TableContent(
            format=FORMAT,
            routing_policy=PolicyReference(name="benchmark", uid="benchmark", generation=1),
            split=Split(prefill=2, decode=2),
            slo=Slo(kind="both", ttft_ms=8000.0, ttft_us_per_prompt_token=0.0, tpot_ms=20.0),
            features=FEATURE_NAMES,
            decider=Bits(
                kind="bits",
                transform=Transform(mean=(7.0, 6.5, 6.0, 5.0), scale=(1.5, 1.5, 2.0, 1.0)),
                clustering=GaussianMixture(kind="gaussian-mixture", covariance="full")
                if mixture
                else KMeans(kind="kmeans"),
                clusters=tuple(random_cluster(generator, clusters=clusters, mixture=mixture) for _ in range(clusters)),
            ),
            output_model=None,
            provenance=Provenance.unsearched("benchmark", seed=SEED),
            created_at="2026-01-31T12:00:00Z",
            software_version="benchmark",
        )
    )


def random_cluster(generator: random.Random, *, clusters: int, mixture: bool) -> Cluster:
    """Return a cluster with a random centre."""

    def row(place: int) -> tuple[float, float, float, float]:
        def entry(column: int) -> float:
            return 0.0 if column < place else generator.uniform(0.5, 2.0)

        return entry(0), entry(1), entry(2), entry(3)

    def coordinate() -> float:
        return generator.gauss(0.0, 1.0)

    return Cluster(
        centre=(coordinate(), coordinate(), coordinate(), coordinate()),
        action=generator.choice(("local", "remote")),
        share=1.0 / clusters,
        samples=1000,
        rewards=Rewards(local=None, remote=None),
        weight=1.0 / clusters if mixture else None,
        precision_cholesky=(row(0), row(1), row(2), row(3)) if mixture else None,
    )


def random_requests() -> list[Features]:
    """Return requests of all sizes."""
    generator = random.Random(SEED)
    requests = []
    for _ in range(REQUESTS):
        prompt_tokens = int(generator.lognormvariate(7.0, 1.5))
        prefill, decode = (max(1, prompt_tokens - int(prompt_tokens * generator.random())) for _ in range(2))
        requests.append(Features(prompt_tokens, prefill, decode, int(generator.lognormvariate(5.0, 1.0))))
    return requests


def measure(contenders: dict[str, Decide], *, turns: int) -> dict[str, float]:
    """Return the median time of one decision of each contender, in microseconds."""
    requests = random_requests()
    times_us: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(turns):
        for name, decide in contenders.items():
            start = time.perf_counter()
            for features in requests:
                decide(features, IDLE)
            times_us[name].append((time.perf_counter() - start) / len(requests) * 1e6)
    return {name: statistics.median(times) for name, times in times_us.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the times; return 1 when one is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object, in microseconds")
    parser.add_argument("--turns", type=int, default=101, help="measurements of each policy, %(default)s unless given")
    arguments = parser.parse_args(argv)
    contenders: dict[str, Decide] = {
        "k8_us": policy_from_table(random_table(clusters=8, mixture=False)).decide,
        "k16_us": policy_from_table(random_table(clusters=16, mixture=False)).decide,
        "mixture_k8_us": policy_from_table(random_table(clusters=8, mixture=True)).decide,
        "mixture_k16_us": policy_from_table(random_table(clusters=16, mixture=True)).decide,
        "rule_us": length_rule,
    }
    times_us = measure(contenders, turns=arguments.turns)
    if arguments.json:
        print(json.dumps(times_us))
    else:
        print(f"{'policy':<16}{'µs':>8}{'limit':>8}{'rules':>8}")
        for name, time_us in times_us.items():
            limit = f"{LIMITS_US[name]:.0f}" if name in LIMITS_US else "-"
            print(f"{name.removesuffix('_us'):<16}{time_us:>8.2f}{limit:>8}{time_us / times_us['rule_us']:>8.1f}")
    return int(any(times_us[name] > limit for name, limit in LIMITS_US.items()))


if __name__ == "__main__":
    raise SystemExit(main())
