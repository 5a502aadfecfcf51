"""A set of emulated workers in one process, on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from socket import SO_REUSEADDR, SOL_SOCKET, socket

from dolphin_router.contract import Split
from dolphin_sim.emulator.options import Role, WorkerOptions
from dolphin_sim.emulator.worker import EmulatedWorker, emulated_worker


@dataclass(frozen=True)
class EmulatedCluster:
    """Its running workers."""

    prefill: list[EmulatedWorker]
    decode: list[EmulatedWorker]
    aggregated: list[EmulatedWorker]
    notice_endpoint: str | None = None
    """Where LMCache's prefill workers expect a router that waits for their notices; None for other engines."""

    @property
    def workers(self) -> list[EmulatedWorker]:
        """All of them."""
        return [*self.prefill, *self.decode, *self.aggregated]


@asynccontextmanager
async def emulated_cluster(
    split: Split, options: WorkerOptions | None = None, *, aggregated: int = 0
) -> AsyncIterator[EmulatedCluster]:
    """Run a cluster in this process.

    Args:
        split: how many workers prefill and decode.
        options: of every worker; its role is not looked at. With a port, the workers take that one and those after it,
            prefill workers first. A router for LMCache's notices is expected at a free port unless they name one.
        aggregated: workers that do both, for engines whose decode workers cannot prefill.
    """
    common = options if options is not None else WorkerOptions()
    placeholder = None
    if common.engine == "vllm-lmcache" and common.notice_endpoint is None:
        placeholder = _reserved_port(common.host)
        host, port = placeholder.getsockname()
        common = replace(common, notice_endpoint=f"tcp://{host}:{port}")
    cluster = EmulatedCluster([], [], [], notice_endpoint=common.notice_endpoint)
    roles: list[tuple[Role, list[EmulatedWorker], int]] = [
        ("prefill", cluster.prefill, split.prefill),
        ("decode", cluster.decode, split.decode),
        ("aggregated", cluster.aggregated, aggregated),
    ]
    async with AsyncExitStack() as stack:
        if placeholder is not None:
            stack.enter_context(placeholder)
        port = common.port
        for role, workers, count in roles:
            for _ in range(count):
                worker = emulated_worker(replace(common, role=role, port=port))
                workers.append(await stack.enter_async_context(worker))
                port += 1 if port else 0
        yield cluster


def _reserved_port(host: str) -> socket:
    """Return a socket that keeps a port from being given to others, but not from being listened at."""
    placeholder = socket()
    placeholder.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
    placeholder.bind((host, 0))
    return placeholder
