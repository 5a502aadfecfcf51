"""What kind of worker to emulate."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from dolphin_sim.hardware.profile import HardwareProfile, load_profile

EngineName = Literal["vllm-nixl", "vllm-mooncake", "vllm-lmcache", "sglang", "atom", "sidecar"]
Role = Literal["prefill", "decode", "aggregated"]
EventEncoding = Literal["0.11", "0.33", "main"]
"""Of vLLM's versions: lists in a list; maps in a list; maps in a map."""
ENGINE_NAMES: tuple[EngineName, ...] = get_args(EngineName)
EVENT_ENCODINGS: tuple[EventEncoding, ...] = get_args(EventEncoding)
ROLES: tuple[Role, ...] = get_args(Role)
DEFAULT_PROFILE = "h20x4-72b"
MOST_MODEL_LEN = 131_072

# kv_lease_duration of vLLM; VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT; SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT. LMCache's
# decode worker holds what was pushed to it until a request takes it, ATOM's prefill worker until it was fetched.
_LEASE_S: dict[EngineName, float] = {
    "vllm-nixl": 30.0,
    "vllm-mooncake": 480.0,
    "vllm-lmcache": math.inf,
    "sglang": 300.0,
    "atom": math.inf,
    "sidecar": 30.0,
}
_WAIT_S: dict[EngineName, float] = _LEASE_S | {"vllm-nixl": 480.0, "sidecar": 480.0}


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """One emulated worker. Ports are free ones where they are 0. Seconds are simulated ones."""

    engine: EngineName = "vllm-nixl"
    role: Role = "aggregated"
    profile: HardwareProfile = field(default_factory=lambda: load_profile(DEFAULT_PROFILE))
    model: str = "emulated"
    time_scale: float = 1.0
    """Simulated seconds in a second."""
    host: str = "127.0.0.1"
    port: int = 0
    side_channel_port: int = 0
    """Where decode workers fetch KV caches."""
    bootstrap_port: int = 0
    """Where those of SGLang and Mooncake ask first."""
    receive_port: int = 0
    """Where a decode worker of LMCache takes KV caches in."""
    notice_endpoint: str | None = None
    """ZeroMQ address at which a router waits for the notices of LMCache's prefill workers."""
    block_tokens: int = 16
    max_model_len: int | None = None
    """Most tokens of prompt and answer together; by default 131,072, or the memory where that is less."""
    api_key: str | None = None
    kv_lease_s: float | None = None
    """Until a prefill worker frees a KV cache that nobody fetches; vLLM's ``kv_lease_duration``. By default that of
    the engine."""
    kv_wait_s: float | None = None
    """Until a decode worker gives up waiting for a KV cache; by default that of the engine."""
    old_parameters: bool = False
    """The seven ``kv_transfer_params`` of vLLM 0.11 instead of those of 0.33; then a decode worker knows a KV cache by
    the request's id, which must be the same on both legs."""
    recompute_lost_kv: bool = False
    """vLLM's ``kv_load_failure_policy``: ``recompute`` instead of ``fail``."""
    kv_events: EventEncoding | None = None
    """Publish what the prefix cache holds, in this encoding."""
    kv_events_port: int = 0
    kv_replay_port: int = 0
    kv_events_buffer: int = 10_000
    faults: tuple[str, ...] = ()
    """Switched on from the start; see ``dolphin_sim.emulator.faults``."""

    @property
    def lease_s(self) -> float:
        """How long a prefill worker keeps a KV cache that nobody fetches."""
        return _LEASE_S[self.engine] if self.kv_lease_s is None else self.kv_lease_s

    @property
    def wait_s(self) -> float:
        """How long a decode worker waits for a KV cache."""
        return _WAIT_S[self.engine] if self.kv_wait_s is None else self.kv_wait_s

    @property
    def longest_tokens(self) -> int:
        """Most tokens of prompt and answer together."""
        memory_tokens = self.profile.kv_capacity_tokens
        return min(self.max_model_len or MOST_MODEL_LEN, memory_tokens)

    @property
    def step_tokens(self) -> int:
        """Most new tokens in a step."""
        return self.profile.prefill_step_tokens if self.role == "prefill" else self.profile.decode_step_tokens
