"""Receives what prefill workers announce: KV caches that have arrived at their decode workers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import zmq

from dolphin_router.adapters.base import EngineAdapter
from dolphin_router.exchange.kv_arrivals import KvArrivals
from dolphin_router.kv_events.message_socket import MessageSocket

MOST_NOTICE_BYTES: Final = 1024
"""A notice holds a name and a number, about 50 bytes. Whoever sends more is disconnected."""

_NOTICES_AT_ONCE: Final = 64
"""After so many, requests get their turn."""

logger = logging.getLogger(__name__)


class NoticeReceiver:
    """Listens at one address. Made within a running event loop. Messages that are no notices are counted."""

    def __init__(self, endpoint: str, *, adapter: EngineAdapter, arrivals: KvArrivals) -> None:
        """Listen.

        Args:
            endpoint: a ZeroMQ address of this machine's, ``tcp://0.0.0.0:7500`` for instance.
            adapter: reads the notices.
            arrivals: told of them.

        Raises:
            OSError: the address cannot be used.
        """
        self._adapter = adapter
        self._arrivals = arrivals
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._socket = MessageSocket(
                self._context, zmq.PULL, endpoint, binds=True, most_message_bytes=MOST_NOTICE_BYTES
            )
        except zmq.ZMQError as error:
            self._context.term()
            raise OSError(error.errno, f"cannot wait for notices at {endpoint}: {error}") from error
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run(), name="notices")

    async def close(self) -> None:
        """Listen no longer."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._socket.close()
        self._context.term()

    async def _run(self) -> None:
        taken = 0
        while True:
            self._take(await self._socket.receive())
            taken += 1
            if taken % _NOTICES_AT_ONCE == 0:  # a message that is there already is received without a pause
                await asyncio.sleep(0)

    def _take(self, frames: Sequence[bytes]) -> None:
        arrivals = self._arrivals
        try:
            if len(frames) != 1:
                raise ValueError(f"a notice is one frame, and {len(frames)} came")
            transfer_id = self._adapter.read_notice(frames[0])
        except ValueError as error:
            if not arrivals.malformed:
                logger.warning("a message is no notice, and others like it will only be counted: %s", error)
            arrivals.malformed += 1
            return
        try:
            arrivals.announce(transfer_id)
        except Exception as error:
            # One request's fault must not keep the notices of all others from being read.
            self._loop.call_exception_handler({"message": "a notice could not be acted on", "exception": error})
