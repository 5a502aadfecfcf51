"""How workers of one kind of engine hand over KV caches: one small class each."""

from __future__ import annotations

from dolphin_sim.emulator.connectors.atom import AtomConnector
from dolphin_sim.emulator.connectors.base import Connector, Parts
from dolphin_sim.emulator.connectors.lmcache import LmcacheConnector
from dolphin_sim.emulator.connectors.mooncake import MooncakeConnector
from dolphin_sim.emulator.connectors.nixl import NixlConnector
from dolphin_sim.emulator.connectors.sglang import SglangConnector
from dolphin_sim.emulator.connectors.sidecar import SidecarConnector
from dolphin_sim.emulator.options import EngineName

__all__ = ["Connector", "Parts", "make_connector"]

_KINDS: dict[EngineName, type[Connector]] = {
    "vllm-nixl": NixlConnector,
    "vllm-mooncake": MooncakeConnector,
    "vllm-lmcache": LmcacheConnector,
    "sglang": SglangConnector,
    "atom": AtomConnector,
    "sidecar": SidecarConnector,
}


def make_connector(engine: EngineName, parts: Parts) -> Connector:
    """Return the connector of an engine."""
    return _KINDS[engine](parts)
