"""Engine adapters: one module for each wire protocol between router, prefill workers and decode workers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from .atom import AtomAdapter
from .base import EngineAdapter
from .sglang import SglangAdapter
from .sidecar import SidecarAdapter
from .vllm_lmcache import VllmLmcacheAdapter
from .vllm_mooncake import VllmMooncakeAdapter
from .vllm_nixl import VllmNixlAdapter

__all__ = ["ADAPTERS", "EngineAdapter", "adapter_named"]

_ALL: Final[tuple[EngineAdapter, ...]] = (
    VllmNixlAdapter(),
    VllmMooncakeAdapter(),
    VllmLmcacheAdapter(),
    SglangAdapter(),
    AtomAdapter(),
    SidecarAdapter(),
)
ADAPTERS: Final[Mapping[str, EngineAdapter]] = MappingProxyType({adapter.name: adapter for adapter in _ALL})
"""By engine name. Adapters hold no state, so that one serves every request."""


def adapter_named(engine: str) -> EngineAdapter:
    """Return an engine's adapter.

    Raises:
        ValueError: there is none of this name; the message lists those that are.
    """
    try:
        return ADAPTERS[engine]
    except KeyError:
        raise ValueError(f"engine {engine!r} is not known; choose one of {', '.join(ADAPTERS)}") from None
