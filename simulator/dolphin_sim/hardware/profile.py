"""Hardware profiles: numbers from data files, checked."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(gt=0)]


class HardwareProfile(BaseModel):
    """One worker: a model on some GPUs, its memory, its link, and the settings of its engine.

    The step-time fields are the terms of the closed form that :mod:`dolphin_sim.hardware.law` states.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    origin: str
    """Where the numbers come from."""
    weight_read_ms: NotNegative
    """Least time of the matrix products of a step: reading all weights once."""
    gemm_gflop_per_token: Positive
    peak_tflops: Positive
    gemm_efficiency: Annotated[tuple[tuple[Count, Fraction], ...], Field(min_length=1)]
    """Pairs of step tokens and the share of the peak that matrix products reach; linear in the logarithm between
    them."""
    attention_flop_per_pair: Positive
    attention_efficiency: Fraction
    decode_attention_ms: NotNegative
    decode_attention_ns_per_token: NotNegative
    allreduce_min_ms: NotNegative
    allreduce_us_per_token: NotNegative
    other_ms: NotNegative
    kv_bytes_per_token: Count
    kv_capacity_tokens: Count
    link_gb_per_s: Positive
    """Bandwidth of a worker's network link, 10⁹ bytes a second."""
    transfer_overhead_ms: NotNegative
    prefill_step_tokens: Count
    """Most new tokens in a step of a prefill worker (``max_num_batched_tokens`` in vLLM)."""
    decode_step_tokens: Count
    """The same on a decode worker: how big a chunk of a local prefill disturbs the decodes beside it."""
    max_running: Count
    host_tier_tokens: Annotated[int, Field(ge=0)]
    """KV tokens kept in host memory after eviction from the GPUs; 0 for none."""
    host_gb_per_s: Positive

    @model_validator(mode="after")
    def _efficiency_rises_in_tokens(self) -> Self:
        tokens = [point[0] for point in self.gemm_efficiency]
        if tokens != sorted(set(tokens)):
            raise ValueError("gemm_efficiency must list step tokens in rising order, each once")
        return self

    def replaced(self, **changes: object) -> HardwareProfile:
        """Return a copy with other values, checked like the original.

        Raises:
            ValueError: a name is no field or a value is not allowed.
        """
        return _validated(json.dumps({**json.loads(self.model_dump_json()), **changes}), source=self.name)


def profile_names() -> list[str]:
    """Return the names of the profiles that come with the package."""
    return sorted(entry.name.removesuffix(".json") for entry in _directory().iterdir() if entry.name.endswith(".json"))


def load_profile(name_or_path: str) -> HardwareProfile:
    """Return a profile by its name, or from a file of one's own.

    Raises:
        ValueError: there is no such profile or file, or the file is not a valid profile; the message says which field.
    """
    if name_or_path in profile_names():
        return _validated((_directory() / f"{name_or_path}.json").read_text("utf-8"), source=name_or_path)
    path = Path(name_or_path)
    if not path.is_file():
        names = ", ".join(profile_names())
        raise ValueError(f"hardware profile {name_or_path!r} is neither a known name ({names}) nor a file")
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"hardware profile {name_or_path!r} cannot be read: {error}") from error
    return _validated(text, source=name_or_path)


def _directory() -> Path:
    return Path(str(files("dolphin_sim.hardware"))) / "profiles"


def _validated(text: str, *, source: str) -> HardwareProfile:
    try:
        return HardwareProfile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ValueError(f"hardware profile {source!r}: {field}: {first['msg']}") from error
