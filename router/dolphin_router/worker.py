"""A worker as the router is told of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

WorkerRole = Literal["prefill", "decode", "aggregated"]


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One engine and where it listens. Two workers with the same address are the same worker."""

    role: WorkerRole
    host: str
    """A name or an address; IPv6 without brackets."""
    port: int
    bootstrap_port: int | None = None
    """Where a prefill worker of SGLang, or of vLLM with Mooncake, takes part in the hand-over of KV caches."""
    kv_events_endpoint: str | None = None
    """ZeroMQ address on which the engine publishes what its prefix cache holds, such as ``tcp://10.0.0.1:5557``."""
    kv_replay_endpoint: str | None = None
    """ZeroMQ address at which missed events can be asked for again."""
    facts: Mapping[str, object] = field(default_factory=dict, compare=False)
    """What adapters need to know of an engine: from the configuration, or what it said of itself when it was asked."""

    @property
    def name(self) -> str:
        """``host:port``, with brackets around an IPv6 address."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"
