"""KV events over ZeroMQ: which blocks the prefix cache holds, as vLLM publishes it.

A message is ``[topic, sequence number, payload]``, the number 8 bytes, big-endian, from 0. A ROUTER socket replays the
latest messages from a number that a client sends, and ends with the number -1. ATOM sends the payload alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from dolphin_sim.emulator.memory import BlockKey
from dolphin_sim.emulator.options import EventEncoding, WorkerOptions

_END = (-1).to_bytes(8, "big", signed=True)
_TOPIC = b""
_MEDIUM = "GPU"
_encode = msgspec.msgpack.Encoder().encode


class KvEventPublisher:
    """Publishes what it hears of a prefix cache, a batch for all that happens at one instant.

    Args:
        options: of the worker, with an encoding.
    """

    def __init__(self, options: WorkerOptions, encoding: EventEncoding) -> None:
        self._options = options
        self._encoding = encoding
        self._has_numbers = options.engine != "atom"
        self._events: list[Any] = []
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=options.kv_events_buffer)
        self._next_number = 0
        self._to_lose = 0
        self._context = zmq.asyncio.Context()
        self._publisher = zmq.Context(self._context).socket(zmq.PUB)
        self._replayer = self._context.socket(zmq.ROUTER)
        self._replaying: asyncio.Task[None] | None = None
        self.endpoint = ""
        self.replay_endpoint: str | None = None

    async def start(self) -> None:
        """Bind both sockets."""
        self.endpoint = _bind(self._publisher, self._options.host, self._options.kv_events_port)
        if self._has_numbers:
            self.replay_endpoint = _bind(self._replayer, self._options.host, self._options.kv_replay_port)
            self._replaying = asyncio.create_task(self._replay())

    async def stop(self) -> None:
        """Close them."""
        if self._replaying is not None:
            self._replaying.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._replaying
        self._publisher.close(linger=0)
        self._replayer.close(linger=0)
        self._context.term()

    def lose(self, batches: int) -> None:
        """Do not send the next batches, as if the network had lost them; they can be replayed."""
        self._to_lose = batches

    def stored(self, parent: BlockKey | None, blocks: Sequence[BlockKey], tokens: Sequence[int]) -> None:
        """See ``CacheListener.stored``."""
        size = self._options.block_tokens
        if self._encoding == "0.11":
            self._add(["BlockStored", list(blocks), parent, list(tokens), size, None, _MEDIUM])
        else:
            self._add(
                {
                    "type": "BlockStored",
                    "block_hashes": list(blocks),
                    "parent_block_hash": parent,
                    "token_ids": list(tokens),
                    "block_size": size,
                    "lora_id": None,
                    "medium": _MEDIUM,
                    "lora_name": None,
                }
            )

    def removed(self, block: BlockKey) -> None:
        """See ``CacheListener.removed``."""
        if self._encoding == "0.11":
            self._add(["BlockRemoved", [block], _MEDIUM])
        else:
            self._add({"type": "BlockRemoved", "block_hashes": [block], "medium": _MEDIUM})

    def cleared(self) -> None:
        """See ``CacheListener.cleared``."""
        self._add(["AllBlocksCleared"] if self._encoding == "0.11" else {"type": "AllBlocksCleared"})

    def _add(self, event: Any) -> None:
        if not self._events:
            asyncio.get_running_loop().call_soon(self._publish)
        self._events.append(event)

    def _publish(self) -> None:
        events, self._events = self._events, []
        batch: Any = [time.time(), events, 0]
        if self._encoding == "main":
            batch = {"ts": batch[0], "events": events, "data_parallel_rank": 0}
        payload = _encode(batch)
        number = self._next_number
        self._next_number += 1
        self._buffer.append((number, payload))
        if self._to_lose > 0:
            self._to_lose -= 1
        elif not self._publisher.closed:
            frames = [_TOPIC, number.to_bytes(8, "big"), payload] if self._has_numbers else [payload]
            self._publisher.send_multipart(frames)

    async def _replay(self) -> None:
        while True:
            client, *frames = await self._replayer.recv_multipart()
            # A REQ or DEALER socket: an empty frame and the first number that is missing.
            if len(frames) != 2 or len(frames[1]) != 8:
                continue
            first = int.from_bytes(frames[1], "big")
            for number, payload in list(self._buffer):
                if number >= first:
                    await self._replayer.send_multipart([client, b"", number.to_bytes(8, "big"), payload])
            await self._replayer.send_multipart([client, b"", _END, b""])


def _bind(socket: zmq.Socket[Any], host: str, port: int) -> str:
    address = f"tcp://{host}"
    if port:
        socket.bind(f"{address}:{port}")
        return f"{address}:{port}"
    return f"{address}:{socket.bind_to_random_port(address)}"
