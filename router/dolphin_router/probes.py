"""Asking workers whether they are ready, and what must be known of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from .adapters.base import EngineAdapter
from .fleet import Fleet, WorkerState
from .http.request import Headers
from .http.upstream import Call, CallFailure, ConnectionPool

logger = logging.getLogger(__name__)


class ProbeFailed(Exception):
    """A worker did not answer as it should; the message says how."""


class _Answer:
    """Collects the answer to a probe."""

    def __init__(self, future: asyncio.Future[tuple[int, bytes]]) -> None:
        self._future = future
        self._status = 0
        self._body: list[bytes] = []

    def on_head(self, status: int, headers: Headers) -> None:
        self._status = status

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_end(self) -> None:
        if not self._future.done():
            self._future.set_result((self._status, b"".join(self._body)))

    def on_failure(self, failure: CallFailure, reason: str) -> None:
        if not self._future.done():
            self._future.set_exception(ProbeFailed(reason))


async def get(pool: ConnectionPool, host: bytes, path: str, *, timeout_s: float) -> bytes:
    """Return the body of the answer to ``GET path``.

    Raises:
        ProbeFailed: there was none in time, or its status was not 200.
    """
    future: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
    request = b"GET %b HTTP/1.1\r\nhost: %b\r\naccept-encoding: identity\r\n\r\n" % (path.encode(), host)
    call = Call(pool, request, _Answer(future))
    try:
        async with asyncio.timeout(timeout_s):
            status, body = await future
    except TimeoutError:
        raise ProbeFailed(f"no answer to GET {path} within {timeout_s:g} s") from None
    finally:
        call.abort()
    if status != 200:
        raise ProbeFailed(f"GET {path} was answered {status}")
    return body


class Prober:
    """Keeps the fleet's readiness true: one task a worker.

    A worker is ready when ``/health`` answers 200 and the adapter knows what it must. It stops being ready after
    ``failures`` probes in a row without such an answer, or at once when it accepts no connection.
    """

    def __init__(
        self,
        fleet: Fleet,
        adapter: EngineAdapter,
        *,
        interval_s: float = 1.0,
        timeout_s: float = 5.0,
        failures: int = 3,
        on_return: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Probe nothing yet.

        Args:
            fleet: whose readiness is kept.
            adapter: tells what must be known of a worker.
            interval_s: between two probes of a worker.
            timeout_s: for one probe.
            failures: in a row, until a worker counts as not ready.
            on_return: told the name of a worker that becomes ready: what it had cached may be gone.
        """
        self._fleet = fleet
        self._adapter = adapter
        self._on_return = on_return
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._failures = failures
        self._tasks: dict[WorkerState, asyncio.Task[None]] = {}
        self._wake: dict[WorkerState, asyncio.Event] = {}

    def follow(self) -> None:
        """Probe exactly the workers that the fleet has now."""
        current = set(self._fleet.workers)
        for state in [state for state in self._tasks if state not in current]:
            self._tasks.pop(state).cancel()
            del self._wake[state]
        for state in self._fleet.workers:
            if state not in self._tasks:
                self._wake[state] = asyncio.Event()
                self._tasks[state] = asyncio.get_running_loop().create_task(self._probe(state, self._wake[state]))

    def suspect(self, state: WorkerState) -> None:
        """Take a worker out of use until it answers again, and ask it now."""
        self._fleet.set_ready(state, False)
        wake = self._wake.get(state)
        if wake is not None:
            wake.set()

    def close(self) -> None:
        """Stop."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    async def _probe(self, state: WorkerState, wake: asyncio.Event) -> None:
        failures = 0
        last_reason = ""
        while True:
            try:
                await get(state.pool, state.host_header, "/health", timeout_s=self._timeout_s)
                # Every time: a worker that has restarted between two probes is another one.
                facts = await self._facts(state)
            except ProbeFailed as error:
                failures += 1
                if failures >= self._failures:
                    self._fleet.set_ready(state, False)
                if str(error) != last_reason and not state.is_ready:
                    last_reason = str(error)
                    logger.warning("worker not ready worker=%s reason=%s", state.worker.name, error)
            else:
                failures = 0
                last_reason = ""
                if not state.is_ready:
                    logger.info("worker ready worker=%s role=%s", state.worker.name, state.worker.role)
                    self._on_return(state.worker.name)
                self._fleet.set_ready(state, True, facts)
            wake.clear()
            try:
                async with asyncio.timeout(self._interval_s):
                    await wake.wait()
                # A worker that has just refused a connection is not asked again within the same moment.
                await asyncio.sleep(min(0.1, self._interval_s))
            except TimeoutError:
                pass

    async def _facts(self, state: WorkerState) -> Mapping[str, object] | None:
        probe = self._adapter.probe(state.worker)
        if probe is None:
            return None
        pool = ConnectionPool(
            state.worker.host,
            probe.port,
            loop=asyncio.get_running_loop(),
            connect_timeout_s=self._timeout_s,
        )
        try:
            body = await get(pool, state.host_header, probe.path, timeout_s=self._timeout_s)
            return self._adapter.facts(body)
        except ValueError as error:
            raise ProbeFailed(f"GET {probe.path} on port {probe.port}: {error}") from error
        finally:
            pool.close()
