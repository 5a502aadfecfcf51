"""Write the hardware profiles of GPUs for which a public performance model has figures.

    .venv/bin/python scripts/fit_profiles.py

Times of prefills and decode steps of a dense 72B model (Qwen2.5-72B in bf16, tensor parallel on four GPUs) come from
aiconfigurator 0.12.0 with its vLLM back-end. What is known of the hardware is taken as it is; efficiencies and fixed
times are fitted, least squares of the relative error.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from dolphin_router.contract import Split
from dolphin_sim.engine.step_time import attention_pairs, decode_attention_s, prefill_s
from dolphin_sim.hardware import HardwareProfile, load_profile
from dolphin_sim.hardware.law import engine_settings

PROFILES = Path(__file__).parents[1] / "simulator" / "dolphin_sim" / "hardware" / "profiles"

GPUS = 4
WEIGHT_GB = 145.4
# As for 4 x H20, whose profile says where these come from: share of the memory bandwidth at which weights are read,
# share of the memory that is used, and overhead of each GPU.
READ_EFFICIENCY = 0.82
MEMORY_USED = 0.9
OVERHEAD_GB = 5.0
ALLREDUCE_BYTES_PER_TOKEN = 160 * 24_576
# An all-reduce moves 0.4 of what the links could: 360 GB/s on H20, whose NVLink makes 900.
ALLREDUCE_EFFICIENCY = 0.4

EFFICIENCY_TOKENS = (256, 2048, 8192)
DECODES = (1, 8, 32, 64)
CONTEXTS = (2048, 8192)
PREFILLS = (200, 2000, 8088, 19_019)


@dataclass(frozen=True)
class Gpu:
    """A GPU, and the times computed for four of it, in milliseconds."""

    name: str
    tflops: float
    memory_gb: float
    memory_tb_per_s: float
    nvlink_gb_per_s: float
    prefill_ms: tuple[float, ...]
    """Of PREFILLS."""
    decode_ms: tuple[tuple[float, float], ...]
    """Of DECODES, at each of CONTEXTS."""
    cached_prefill_ms: dict[tuple[int, int], float] = field(default_factory=dict)
    """Of new tokens on cached tokens."""
    mixed_ms: dict[int, float] = field(default_factory=dict)
    """Of a chunk of so many tokens beside 32 decodes at 8,192."""


FIGURES = (
    Gpu(
        name="H100",
        tflops=989.0,
        memory_gb=80.0,
        memory_tb_per_s=3.35,
        nvlink_gb_per_s=900.0,
        prefill_ms=(22.7, 130.0, 572.0, 1366.0),
        decode_ms=((15.3, 15.5), (16.7, 18.3), (18.6, 23.7), (21.1, 31.0)),
    ),
    Gpu(
        name="A100",
        tflops=312.0,
        memory_gb=80.0,
        memory_tb_per_s=2.039,
        nvlink_gb_per_s=600.0,
        prefill_ms=(52.2, 336.0, 1356.0, 3562.0),
        decode_ms=((28.0, 29.0), (30.8, 33.7), (35.8, 46.6), (40.5, 59.1)),
    ),
    Gpu(
        name="H200",
        tflops=989.0,
        memory_gb=141.0,
        memory_tb_per_s=4.8,
        nvlink_gb_per_s=900.0,
        prefill_ms=(19.3, 127.0, 536.0, 1446.0),
        decode_ms=((12.6, 12.8), (13.2, 14.3), (14.6, 18.2), (16.5, 23.5)),
        cached_prefill_ms={(3800, 0): 248.0, (3800, 15_219): 303.0},
        mixed_ms={256: 28.0, 512: 45.0, 1024: 77.0, 2048: 144.0, 4096: 288.0, 8192: 592.0},
    ),
)

# Fitted: efficiency of matrix products at each of EFFICIENCY_TOKENS, and of prefill attention; time of decode attention
# for each context token (ns); everything else (ms), which holds the fixed time of decode attention, too.
LOW = (*[0.05] * len(EFFICIENCY_TOKENS), 0.05, 0.0, 0.0)
START = (*[0.6] * len(EFFICIENCY_TOKENS), 0.6, 20.0, 2.0)
HIGH = (*[0.95] * len(EFFICIENCY_TOKENS), 0.95, 200.0, 20.0)


def with_fitted(profile: HardwareProfile, values: tuple[float, ...], *, digits: int = 15) -> HardwareProfile:
    """Return the profile with these values of what is fitted, rounded to so many significant digits."""
    rounded = [float(f"{value:.{digits}g}") for value in values]
    *efficiencies, attention_efficiency, ns_per_token, other_ms = rounded
    return profile.replaced(
        gemm_efficiency=list(zip(EFFICIENCY_TOKENS, efficiencies, strict=True)),
        attention_efficiency=attention_efficiency,
        decode_attention_ns_per_token=ns_per_token,
        other_ms=other_ms,
    )


def relative_errors(profile: HardwareProfile, gpu: Gpu) -> list[float]:
    """Return ln(law / figure) for every figure of the GPU."""
    settings = engine_settings(profile, Split(prefill=1, decode=1), block_tokens=64)
    prefills = {(tokens, 0): ms for tokens, ms in zip(PREFILLS, gpu.prefill_ms, strict=True)}
    pairs = [
        (prefill_s(settings, new, cached, profile.prefill_step_tokens), ms)
        for (new, cached), ms in (prefills | gpu.cached_prefill_ms).items()
    ]
    for decodes, times_ms in zip(DECODES, gpu.decode_ms, strict=True):
        for context, ms in zip(CONTEXTS, times_ms, strict=True):
            pairs.append((settings.step_s[decodes] + decode_attention_s(settings, decodes, decodes * context), ms))
    for chunk, ms in gpu.mixed_ms.items():
        # The largest chunk leaves room for the decodes, since a step has no more tokens than its budget.
        new = min(chunk, profile.prefill_step_tokens - 32)
        attention_s = settings.attention_s_per_pair * attention_pairs(float(new), 0.0)
        pairs.append((settings.step_s[new + 32] + attention_s + decode_attention_s(settings, 32, 32 * 8192), ms))
    return [math.log(seconds * 1e3 / ms) for seconds, ms in pairs]


def fit(gpu: Gpu) -> HardwareProfile:
    """Return the profile that comes closest to the figures."""
    start = load_profile("h20x4-72b").replaced(
        name=f"{gpu.name.lower()}x4-72b",
        origin=(
            f"Qwen2.5-72B in bf16, tensor parallel on 4 {gpu.name} ({gpu.tflops:g} TFLOP/s dense, "
            f"{gpu.memory_tb_per_s:g} TB/s, {gpu.memory_gb:g} GB each). Efficiencies, decode attention and other_ms "
            "fitted by scripts/fit_profiles.py to times that aiconfigurator 0.12.0 computes for its vLLM back-end; "
            "weights read at 0.82 of the memory bandwidth and all-reduce at 0.4 of NVLink's, as on H20; KV room 0.9 of "
            "memory less weights and 5 GB a GPU; link: four 200 Gbit/s adapters; overhead, step sizes and host tier: "
            "own choice."
        ),
        weight_read_ms=round(WEIGHT_GB / GPUS / gpu.memory_tb_per_s / READ_EFFICIENCY, 2),
        peak_tflops=GPUS * gpu.tflops,
        decode_attention_ms=0.0,
        allreduce_us_per_token=round(ALLREDUCE_BYTES_PER_TOKEN / (gpu.nvlink_gb_per_s * ALLREDUCE_EFFICIENCY * 1e3), 3),
        kv_capacity_tokens=round(kv_room_tokens(gpu), -3),
    )
    result = least_squares(
        lambda values: relative_errors(with_fitted(start, tuple(values)), gpu), START, bounds=(LOW, HIGH), x_scale=START
    )
    return with_fitted(start, tuple(result.x.tolist()), digits=4)


def kv_room_tokens(gpu: Gpu) -> int:
    """Return how many tokens fit into what the weights leave."""
    room_gb = GPUS * gpu.memory_gb * MEMORY_USED - WEIGHT_GB - GPUS * OVERHEAD_GB
    return int(room_gb * 1e9 / load_profile("h20x4-72b").kv_bytes_per_token)


def main() -> None:
    """Fit and write every profile; print the largest error of each."""
    for gpu in FIGURES:
        profile = fit(gpu)
        fields = profile.model_dump(mode="json")
        # As in the profile written by hand: a field a line, the pairs of one field beside each other.
        lines = [f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items()]
        (PROFILES / f"{profile.name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
        errors = np.expm1(relative_errors(profile, gpu))
        print(f"{profile.name}: errors from {errors.min():+.1%} to {errors.max():+.1%}")


if __name__ == "__main__":
    main()
