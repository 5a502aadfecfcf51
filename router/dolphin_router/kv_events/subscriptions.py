"""One subscriber for every worker that publishes events, started and stopped as workers come and go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import NamedTuple

import zmq

from dolphin_router.worker import Worker

from .event_index import EventIndex
from .subscriber import REPLAY_S, EventSubscriber

_logger = logging.getLogger(__name__)


class _Endpoints(NamedTuple):
    events: str
    replay: str | None


class EventSubscriptions:
    """Keeps an index in step with all workers. Made and used within a running event loop, asyncio's or uvloop's."""

    def __init__(self, index: EventIndex, *, replay_s: float = REPLAY_S) -> None:
        self._index = index
        self._replay_s = replay_s
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._tasks: dict[str, tuple[_Endpoints, asyncio.Task[None]]] = {}
        self._running: set[asyncio.Task[None]] = set()
        """Those that were cancelled just now among them: they still have a socket."""

    def follow(self, workers: Iterable[Worker]) -> None:
        """Follow these workers and no others; those that are followed already go on undisturbed.

        Workers without an events endpoint are passed over: nothing exact is known of them.
        """
        wanted = {
            worker.name: _Endpoints(worker.kv_events_endpoint, worker.kv_replay_endpoint)
            for worker in workers
            if worker.kv_events_endpoint is not None
        }
        for name, (endpoints, task) in list(self._tasks.items()):
            if wanted.get(name) != endpoints:
                task.cancel()
                del self._tasks[name]
                self._index.unwatch(name)
        for name, endpoints in wanted.items():
            if name not in self._tasks:
                self._index.watch(name)
                self._tasks[name] = endpoints, self._start(name, endpoints)

    async def close(self) -> None:
        """Stop all subscribers and free the sockets."""
        self.follow(())
        await asyncio.gather(*self._running, return_exceptions=True)
        self._context.term()

    def _start(self, name: str, endpoints: _Endpoints) -> asyncio.Task[None]:
        subscriber = EventSubscriber(
            name,
            endpoint=endpoints.events,
            replay_endpoint=endpoints.replay,
            index=self._index,
            context=self._context,
            replay_s=self._replay_s,
        )
        task = asyncio.create_task(subscriber.run(), name=f"kv-events {name}")
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("a worker's events are no longer followed: task=%s error=%s", task.get_name(), error)
