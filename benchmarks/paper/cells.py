"""The cases of the results page: each one problem, learned and compared for a few seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from dolphin_router.contract import Slo
from dolphin_search.learning import LearningSettings
from dolphin_search.samplers import ScanThenEpsilonGreedy

# The limits of the independent simulation that we compare with: T holds both, E their sum.
T = Slo(kind="both", ttft_ms=8000.0, ttft_us_per_prompt_token=0.0, tpot_ms=20.0)
E = Slo(kind="end-to-end", ttft_ms=5000.0, ttft_us_per_prompt_token=0.0, tpot_ms=60.0)
TRACE_T = Slo(kind="both", ttft_ms=3000.0, ttft_us_per_prompt_token=600.0, tpot_ms=20.0)
TRACE_E = Slo(kind="end-to-end", ttft_ms=3000.0, ttft_us_per_prompt_token=600.0, tpot_ms=60.0)

RATES = {"2P2D": 1.03, "3P1D": 1.4}
CONVERSATION = "mooncake_conversation.jsonl"
SYNTHETIC = "mooncake_synthetic.jsonl"

MAIN_RULES = (
    "learned",
    "exhaustive-best",
    "always-remote",
    "dynamo-isl-bounding",
    "tuned-effective-length",
    "tuned-cost",
)


@dataclass(frozen=True)
class Cell:
    """One case."""

    group: str
    label: str
    split: str
    slo: Slo = T
    workload: str = "hybrid"
    rate_per_s: float | None = None
    """None: the load at which always-remote attains 80 %."""
    profile: dict[str, Any] = field(default_factory=dict)
    """Fields of the h20x4-72b profile that are replaced."""
    learning: LearningSettings = field(default_factory=LearningSettings)
    rules: tuple[str, ...] | None = MAIN_RULES
    """Policies compared; None for all."""
    seeds: int = 2

    @property
    def name(self) -> str:
        """Of the cell's file."""
        return f"{self.group}-{self.label}-{self.split}".replace(" ", "_").replace("/", "_").lower()


def headline() -> Iterator[Cell]:
    """Every rule, on mixed and on real traffic, under both kinds of SLO."""
    whole = {"group": "headline", "rules": None, "seeds": 3}
    for split, label, slo, rate_per_s in (
        ("2P2D", "hybrid T 1.03", T, 1.03),
        ("2P2D", "hybrid T 1.28", T, 1.28),
        ("2P2D", "hybrid E 1.28", E, 1.28),
        ("3P1D", "hybrid T 1.40", T, 1.40),
        ("3P1D", "hybrid T 1.86", T, 1.86),
        ("3P1D", "hybrid E 1.86", E, 1.86),
    ):
        yield Cell(label=label, split=split, slo=slo, rate_per_s=rate_per_s, **whole)
    for trace, rates in ((CONVERSATION, {"2P2D": 0.35, "3P1D": 0.58}), (SYNTHETIC, {"2P2D": 0.42, "3P1D": 0.70})):
        short = "conversation" if trace == CONVERSATION else "synthetic"
        for split, rate_per_s in rates.items():
            for kind, slo in (("T", TRACE_T), ("E", TRACE_E)):
                label = f"{short} {kind} {rate_per_s:.2f}"
                yield Cell(label=label, split=split, slo=slo, workload=trace, rate_per_s=rate_per_s, **whole)
    for split in RATES:
        for kind, slo in (("T", TRACE_T), ("E", TRACE_E)):
            # At the rates above the synthetic trace overloads our cluster: here at the load where always-remote attains
            # 80 %.
            yield Cell(label=f"synthetic {kind} 80", split=split, slo=slo, workload=SYNTHETIC, **whole)


def ablations() -> Iterator[Cell]:
    """The published ablations and our own choices."""
    base = LearningSettings()

    def prepared(**changes: Any) -> LearningSettings:
        return replace(base, preparation=replace(base.preparation, **changes))

    def sampled(**changes: Any) -> LearningSettings:
        return replace(base, sampler=ScanThenEpsilonGreedy(**changes))

    variants = {
        "K=8": base,
        "K=2": prepared(clusters=2),
        "K=4": prepared(clusters=4),
        "K=16": prepared(clusters=16),
        "no scan": sampled(scan=False),
        "no output length": prepared(predictor="none"),
        "perfect output length": prepared(predictor="perfect"),
        "weighted k-means": prepared(clustering="weighted-kmeans"),
        "mixture": prepared(clustering="gaussian-mixture"),
        "global reward": sampled(reward="global"),
        "log-latency reward": sampled(reward="log-latency"),
        "fresh arrivals": replace(base, arrivals="fresh"),
    }
    for split, rate_per_s in RATES.items():
        for label, learning in variants.items():
            yield Cell(group="ablation", label=label, split=split, rate_per_s=rate_per_s, learning=learning, seeds=3)


def pure() -> Iterator[Cell]:
    """One kind of request alone, at the load where always-remote attains 80 %."""
    for split in RATES:
        for workload in ("arxiv", "leval", "humaneval"):
            yield Cell(group="pure", label=workload, split=split, workload=workload, rules=None)


def slo_flip() -> Iterator[Cell]:
    """Which limit is tight."""
    tight_ttft = Slo(kind="both", ttft_ms=3000.0, ttft_us_per_prompt_token=0.0, tpot_ms=100.0)
    tight_tpot = Slo(kind="both", ttft_ms=30000.0, ttft_us_per_prompt_token=0.0, tpot_ms=18.0)
    for split, rate_per_s in RATES.items():
        for label, slo in (("tight TTFT", tight_ttft), ("tight TPOT", tight_tpot)):
            rules = (*MAIN_RULES, "always-local")
            yield Cell(group="flip", label=label, split=split, slo=slo, rate_per_s=rate_per_s, rules=rules)


def sensitivity() -> Iterator[Cell]:
    """One thing changed at a time."""
    for split, rate_per_s in RATES.items():
        for factor in (0.7, 0.85, 1.15):
            yield Cell("sensitivity", f"load x{factor}", split, rate_per_s=factor * rate_per_s)
        for factor in (0.75, 1.5):
            slo = T.model_copy(update={"ttft_ms": factor * T.ttft_ms, "tpot_ms": factor * T.tpot_ms})
            yield Cell("sensitivity", f"SLO x{factor}", split, slo, rate_per_s=rate_per_s)
        for label, changes in (
            ("link 2 GB/s", {"link_gb_per_s": 2.0}),
            ("link 9.7 GB/s", {"link_gb_per_s": 9.7}),
            ("link 87 GB/s", {"link_gb_per_s": 87.0}),
            ("KV 250k tokens", {"kv_capacity_tokens": 250_000}),
            ("KV 1M tokens", {"kv_capacity_tokens": 1_000_000}),
            ("host tier 4M tokens", {"host_tier_tokens": 4_000_000}),
            ("GEMM 20 % slower", {"peak_tflops": 592.0 * 0.8}),
            ("GEMM 20 % faster", {"peak_tflops": 592.0 * 1.2}),
            ("decode chunk 512", {"decode_step_tokens": 512}),
            ("decode chunk 8192", {"decode_step_tokens": 8192}),
        ):
            yield Cell("sensitivity", label, split, rate_per_s=rate_per_s, profile=changes)


def all_cells() -> list[Cell]:
    """Every case, in the order of the page."""
    return [*headline(), *ablations(), *pure(), *slo_flip(), *sensitivity()]
