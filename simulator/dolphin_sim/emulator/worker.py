"""An emulated worker that listens: engine, HTTP and faults together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from dolphin_sim.emulator.application import make_application
from dolphin_sim.emulator.connection import HttpListener
from dolphin_sim.emulator.connectors.lmcache import LmcacheConnector
from dolphin_sim.emulator.engine import EmulatedEngine
from dolphin_sim.emulator.faults import Faults
from dolphin_sim.emulator.ledger import Ledger
from dolphin_sim.emulator.options import WorkerOptions
from dolphin_sim.emulator.received import Recorder

_POLL_S = 0.002


class EmulatedWorker:
    """One worker in this process. To be made inside a running event loop; see :func:`emulated_worker`."""

    def __init__(self, options: WorkerOptions) -> None:
        self.options = options
        self.faults = Faults(options.faults)
        self.engine = EmulatedEngine(options, self.faults)
        recorder = Recorder(make_application(self))
        self.requests = recorder.requests
        """What came in, the newest last."""
        self._http = HttpListener(recorder, self.faults, host=options.host, port=options.port)
        self._opening: asyncio.Task[None] | None = None

    @property
    def ledger(self) -> Ledger:
        """The KV caches that it lent and took."""
        return self.engine.ledger

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._http.port

    @property
    def bootstrap_port(self) -> int | None:
        """Where decode workers of SGLang and routers of Mooncake ask first; None for others."""
        return self.engine.connector.bootstrap_port

    @property
    def url(self) -> str:
        """Where it listens, without a path."""
        return f"http://{self.options.host}:{self.port}"

    def router_address(self) -> dict[str, object]:
        """Return what a router's configuration says of this worker."""
        address: dict[str, object] = {"url": self.url}
        if self.bootstrap_port is not None:
            address["bootstrap_port"] = self.bootstrap_port
        connector = self.engine.connector
        if isinstance(connector, LmcacheConnector) and connector.receive_port is not None:
            # One tensor-parallel rank, which takes both kinds of messages at one port.
            address["lmcache_init_ports"] = address["lmcache_alloc_ports"] = (connector.receive_port,)
        if self.engine.kv_events is not None:
            address["kv_events"] = self.engine.kv_events.endpoint
            if self.engine.kv_events.replay_endpoint is not None:
                address["kv_replay"] = self.engine.kv_events.replay_endpoint
        return address

    @property
    def connections(self) -> int:
        """Open connections of clients."""
        return self._http.connections

    @property
    def is_idle(self) -> bool:
        """Whether no request runs, waits, or holds memory."""
        batch = self.engine.batch
        return batch.running_count + batch.waiting_count + batch.receiving_count == 0

    async def start(self) -> None:
        """Listen on all ports."""
        try:
            await self.engine.start()
            await self._http.open()
        except BaseException:
            await self.stop()
            raise
        self.faults.on_change = self._faults_changed
        self._faults_changed()

    async def stop(self) -> None:
        """Break all connections and close all ports."""
        self.faults.on_change = lambda: None
        if self._opening is not None:
            self._opening.cancel()
        await self._http.close()
        await self.engine.stop()

    async def wait_until(self, condition: Callable[[], bool], *, timeout_s: float = 10.0) -> None:
        """Poll until something holds.

        Raises:
            TimeoutError: it does not in time.
        """
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(_POLL_S)

    def _faults_changed(self) -> None:
        self.engine.apply_faults()
        if self._opening is not None:
            self._opening.cancel()
        if self.faults.is_set("refuse"):
            self._http.refuse()
        else:
            self._http.listen()
            self._opening = asyncio.get_running_loop().create_task(self._http.open())


@asynccontextmanager
async def emulated_worker(options: WorkerOptions | None = None, **changes: Any) -> AsyncIterator[EmulatedWorker]:
    """Run a worker in this process: ``async with emulated_worker(role="decode", time_scale=100.0) as worker``.

    Args:
        options: of the worker.
        changes: fields of ``WorkerOptions``, in place of ``options``.
    """
    worker = EmulatedWorker(options if options is not None else WorkerOptions(**changes))
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop()
