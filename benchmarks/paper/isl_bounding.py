"""What makes Dynamo's isl_bounding level with always-remote or worse at 3P1D: one factor changed at a time.

python benchmarks/paper/isl_bounding.py

Hybrid traffic at 1.4 requests/s, 8 s and 20 ms; eight held-out periods for each of three seeds. Prints a Markdown table
with the attainment of both, the lead of isl_bounding in points (in brackets for how many seeds its 95 % interval is
above or below 0), its P90 TPOT and that of always-remote in milliseconds.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from cells import RATES, T

from dolphin_router.contract import Slo, Split
from dolphin_search.comparison import PolicyResult, compare
from dolphin_search.traffic import EpisodeSource
from dolphin_sim.engine.routing import OUR_CHOICE
from dolphin_sim.episode import Window
from dolphin_sim.hardware import load_profile
from dolphin_sim.policy import Policy, always_remote, dynamo_isl_bounding
from dolphin_sim.simulation import Cluster
from dolphin_sim.workloads import Part, Requests, Workload, workload_by_name

SPLIT = "3P1D"
SEEDS = 3
EPISODES = 8


@dataclass(frozen=True)
class Changed:
    """A workload whose requests are changed."""

    workload: Workload
    change: Callable[[Requests], Requests]
    block_tokens: int

    @property
    def name(self) -> str:
        """The workload's."""
        return self.workload.name

    def episode(self, *, rate_per_s: float, duration_s: float, seed: int, part: Part) -> Requests:
        """See ``Workload.episode``."""
        return self.change(self.workload.episode(rate_per_s=rate_per_s, duration_s=duration_s, seed=seed, part=part))

    def stream(self, *, rate_per_s: float, seed: int, batch_s: float) -> Iterator[Requests]:
        """See ``Workload.stream``."""
        return map(self.change, self.workload.stream(rate_per_s=rate_per_s, seed=seed, batch_s=batch_s))


@dataclass(frozen=True)
class Variant:
    """One factor changed."""

    label: str
    profile: dict[str, Any] = field(default_factory=dict)
    workload: Workload = field(default_factory=lambda: workload_by_name("hybrid"))
    slo: Slo = T
    rule: Policy = field(default_factory=dynamo_isl_bounding)


def larger_blocks(factor: int) -> Workload:
    """Hybrid traffic whose prompts are cached in blocks of ``factor`` times 64 tokens."""
    hybrid = workload_by_name("hybrid")

    def change(requests: Requests) -> Requests:
        blocks = requests.prompt_tokens // (requests.block_tokens * factor)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(blocks)])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], blocks)
        # Ids are chained: that of the last small block stands for the large one.
        last = np.repeat(requests.block_offsets[:-1], blocks) + within * factor + factor - 1
        return replace(
            requests,
            block_offsets=offsets,
            block_ids=requests.block_ids[last],
            block_tokens=requests.block_tokens * factor,
        ).with_dense_block_ids()

    return Changed(hybrid, change, hybrid.block_tokens * factor)


def longer_questions(added_tokens: int) -> Workload:
    """Hybrid traffic whose L-Eval-like prompts end in so many more tokens of their own."""
    hybrid = workload_by_name("hybrid")

    def change(requests: Requests) -> Requests:
        is_question = requests.component == requests.component_names.index("leval")
        prompts = requests.prompt_tokens + added_tokens * is_question
        before, after = np.diff(requests.block_offsets), prompts // requests.block_tokens
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(after)])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], after)
        is_old = within < np.repeat(before, after)
        ids = requests.block_ids.max() + 1 + np.arange(offsets[-1])
        ids[is_old] = requests.block_ids
        return replace(requests, prompt_tokens=prompts, block_offsets=offsets, block_ids=ids).with_dense_block_ids()

    return Changed(hybrid, change, hybrid.block_tokens)


def variants() -> Iterator[Variant]:
    """Everything as in the results, then one factor changed in each."""
    yield Variant("as in the results")
    yield Variant("link 9.7 GB/s", {"link_gb_per_s": 9.7})
    yield Variant("transfer overhead 100 ms", {"transfer_overhead_ms": 100.0})
    yield Variant("decode chunk 512 tokens", {"decode_step_tokens": 512})
    yield Variant("GEMM 10 % slower", {"peak_tflops": 592.0 * 0.9})
    yield Variant("KV 250k tokens", {"kv_capacity_tokens": 250_000})
    yield Variant("KV 1M tokens", {"kv_capacity_tokens": 1_000_000})
    yield Variant("TPOT limit 19 ms", slo=T.model_copy(update={"tpot_ms": 19.0}))
    yield Variant("TTFT limit 6 s", slo=T.model_copy(update={"ttft_ms": 6000.0}))
    yield Variant("bursty arrivals", workload=workload_by_name("hybrid", arrival="bursty"))
    rule = dynamo_isl_bounding()
    ours = replace(rule, decider=rule.decider._replace(worker_choice=OUR_CHOICE))
    yield Variant("workers by our choice", rule=ours)
    for factor in (2, 4, 8):
        yield Variant(f"blocks of {64 * factor} tokens", workload=larger_blocks(factor))
    for added_tokens in (120, 240, 480):
        yield Variant(f"questions of {60 + added_tokens} tokens", workload=longer_questions(added_tokens))


def measure(variant: Variant, seed: int) -> tuple[PolicyResult, PolicyResult]:
    """Return the results of isl_bounding and of always-remote."""
    profile = load_profile("h20x4-72b")
    cluster = Cluster(profile.replaced(**variant.profile) if variant.profile else profile, Split.parse(SPLIT))
    source = EpisodeSource(variant.workload, RATES[SPLIT], Window(), seed)
    results = compare(cluster, variant.slo, source.episodes("test", EPISODES), [variant.rule, always_remote()])
    return results[variant.rule.name], results["always-remote"]


def row(variant: Variant) -> str:
    """Return the variant's row of the table."""
    pairs = [measure(variant, seed) for seed in range(SEEDS)]
    leads = [rule.lead_over(remote) for rule, remote in pairs]
    above = sum(interval[0] > 0 for _, interval in leads)
    below = sum(interval[1] < 0 for _, interval in leads)
    attained = [100 * statistics.fmean(pair[index].attainment for pair in pairs) for index in (0, 1)]
    tpot_ms = [statistics.fmean(pair[index].tpot_ms.p90 for pair in pairs) for index in (0, 1)]
    lead = f"{100 * statistics.fmean(lead for lead, _ in leads):+.1f} ({above}+ {below}− of {SEEDS})"
    cells = (variant.label, f"{attained[1]:.1f}", f"{attained[0]:.1f}", lead, f"{tpot_ms[0]:.1f} / {tpot_ms[1]:.1f}")
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    """Measure and print."""
    print("| changed | always-remote | isl_bounding | its lead | P90 TPOT ms |\n| --- | --- | --- | --- | --- |")
    for variant in variants():
        print(row(variant), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
