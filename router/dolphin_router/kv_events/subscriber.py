"""Receives the events of one engine and keeps the index in step, whatever is lost on the way.

An engine publishes ``[topic, number, payload]`` (vLLM, SGLang), or ``[topic, payload]`` or ``[payload]`` without
numbers (ATOM), where a loss cannot be noticed. Missing messages are asked for again at the replay endpoint, with
``[empty, first number]``; the answers are ``[empty, number, payload]`` up to the number -1. The protocol is that of
``vllm/distributed/kv_events.py``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import zmq

from .decoding import Malformed, decode_batch
from .event_index import EventIndex
from .message_socket import MessageSocket
from .numbering import Numbering, Verdict

REPLAY_S: Final = 2.0
_END: Final = (-1).to_bytes(8, "big", signed=True)
_MESSAGES_AT_ONCE: Final = 16
"""After so many, requests get their turn."""

_logger = logging.getLogger(__name__)


class EventSubscriber:
    """Follows one worker."""

    def __init__(
        self,
        worker: str,
        *,
        endpoint: str,
        replay_endpoint: str | None,
        index: EventIndex,
        context: zmq.Context[zmq.Socket[bytes]],
        replay_s: float = REPLAY_S,
    ) -> None:
        self._worker = worker
        self._endpoint = endpoint
        self._replay_endpoint = replay_endpoint
        self._index = index
        self._context = context
        self._replay_s = replay_s
        self._numbering = Numbering()

    async def run(self) -> None:
        """Follow the worker until cancelled. The worker must be watched by the index.

        Raises:
            zmq.ZMQError: an endpoint is no ZeroMQ address.
        """
        socket = MessageSocket(self._context, zmq.SUB, self._endpoint)
        try:
            if self._replay_endpoint is not None and await self._catch_up():
                self._index.begin(self._worker)
            taken = 0
            while True:
                frames = await socket.receive()
                await self._receive(frames)
                taken += 1
                if taken % _MESSAGES_AT_ONCE == 0:  # a message that is there already is received without a pause
                    await asyncio.sleep(0)
        finally:
            socket.close()

    async def _receive(self, frames: Sequence[bytes]) -> None:
        if len(frames) <= 2:
            self._index.apply(self._worker, decode_batch(frames[-1]))
            return
        if len(frames) != 3 or len(frames[1]) != 8:
            reason = "a message has neither one frame, nor a topic and one, nor a topic, a number and one"
            self._index.apply(self._worker, Malformed(reason, True))
            return
        number = int.from_bytes(frames[1], "big")
        verdict = self._numbering.judge(number, now_s=self._now_s())
        if verdict is Verdict.REPEATED:
            return
        if verdict is Verdict.RESTART:
            _logger.warning("a worker's engine has restarted: worker=%s", self._worker)
            self._index.restarted(self._worker)
        if number == 0:
            self._index.begin(self._worker)
        elif number > self._numbering.wanted:
            await self._fill_gap(number)
        if number >= self._numbering.wanted:
            self._take(number, frames[2])

    async def _fill_gap(self, number: int) -> None:
        wanted = self._numbering.wanted
        if wanted > 0:
            self._index.counters.gaps += 1
        caught_up = self._replay_endpoint is not None and await self._catch_up()
        if caught_up and self._numbering.wanted >= number:
            if wanted == 0:
                self._index.begin(self._worker)
        elif self._numbering.wanted > 0 and self._numbering.wanted < number:
            self._forget("messages were missed")

    async def _catch_up(self) -> bool:
        """Ask for all messages from the first that is wanted on, and take them in.

        Returns:
            Whether that one came, or there is none, and all that the engine has kept after it.
        """
        assert self._replay_endpoint is not None
        wanted = self._numbering.wanted
        socket = MessageSocket(self._context, zmq.DEALER, self._replay_endpoint)
        try:
            async with asyncio.timeout(self._replay_s):
                socket.send([b"", wanted.to_bytes(8, "big")])
                whole = await self._take_replay(socket)
        except TimeoutError:
            return False
        finally:
            self._numbering.replayed(now_s=self._now_s())
            socket.close()
        self._index.counters.replays += whole
        return whole

    async def _take_replay(self, socket: MessageSocket) -> bool:
        numbering = self._numbering
        whole = True
        taken = 0
        while True:
            frames = await socket.receive()
            if len(frames) < 2 or len(frames[-2]) != 8:
                continue
            if frames[-2] == _END:
                return whole
            number = int.from_bytes(frames[-2], "big")
            if number < numbering.wanted:
                continue
            if number > numbering.wanted:  # the engine has not kept what is wanted
                whole = False
                if numbering.wanted > 0:
                    self._forget("missed messages are no longer kept")
            self._take(number, frames[-1])
            taken += 1
            if taken % _MESSAGES_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _take(self, number: int, payload: bytes) -> None:
        self._numbering.seen(number)
        self._index.apply(self._worker, decode_batch(payload))

    def _forget(self, reason: str) -> None:
        _logger.warning("forget what a worker holds: worker=%s reason=%s", self._worker, reason)
        self._index.forget(self._worker)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
