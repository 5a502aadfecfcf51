"""A ZeroMQ socket in an event loop, asyncio's or uvloop's.

``zmq.asyncio`` does the same for every kind of use, and takes half as much CPU time again: 210 against 145 µs a
message, the library's own thread and the index included, at 1,000 messages a second (measured as
``benchmarks/prefix_index.py`` does, on a virtual machine with two cores). Here one task receives, and sending never
waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import zmq

_QUEUED_MESSAGES: Final = 100_000
"""As many as vLLM's publisher keeps for a subscriber by default."""
_HEARTBEAT_MS: Final = 5_000
"""Without it, a connection to a machine that has died looks alive for ever."""


class MessageSocket:
    """A socket that is connected, in the background and again and again, or that others connect to."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        kind: int,
        endpoint: str,
        *,
        binds: bool = False,
        most_message_bytes: int = -1,
    ) -> None:
        """Connect within a running event loop.

        Args:
            context: of the process.
            kind: of socket, ``zmq.SUB`` for instance.
            endpoint: a ZeroMQ address.
            binds: whether to listen at the endpoint instead of connecting to it.
            most_message_bytes: of a received message; who sends more is disconnected. Below 0 there is no limit.

        Raises:
            zmq.ZMQError: the endpoint is no ZeroMQ address, or cannot be listened at.
        """
        self._socket = context.socket(kind)
        try:
            self._socket.setsockopt(zmq.IPV6, 1)
            self._socket.setsockopt(zmq.LINGER, 0)
            self._socket.setsockopt(zmq.RCVHWM, _QUEUED_MESSAGES)
            self._socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
            if kind == zmq.SUB:
                self._socket.setsockopt(zmq.SUBSCRIBE, b"")
            self._socket.setsockopt(zmq.MAXMSGSIZE, most_message_bytes)
            if binds:
                self._socket.bind(endpoint)
            else:
                self._socket.connect(endpoint)
        except zmq.ZMQError:
            self._socket.close()
            raise
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._descriptor = self._socket.fileno()
        self._loop.add_reader(self._descriptor, self._on_change)

    async def receive(self) -> list[bytes]:
        """Return the frames of the next message. Does not pause when there is one already."""
        while True:
            try:
                return self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                self._waiter = self._loop.create_future()
                await self._waiter

    def send(self, frames: Sequence[bytes]) -> None:
        """Queue a message to be sent as soon as there is a connection."""
        self._socket.send_multipart(frames, zmq.NOBLOCK)

    def close(self) -> None:
        """Drop the connection and whatever is queued."""
        self._loop.remove_reader(self._descriptor)
        self._socket.close()

    def _on_change(self) -> None:
        # The descriptor stays readable until the events are asked for, whether or not anyone waits for them.
        readable = int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN
        if readable and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
