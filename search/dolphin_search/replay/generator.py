"""The load generator: sends each request when it is due, whatever the answers do."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import uvloop
from numpy.typing import NDArray

from dolphin_search.replay.answer import Answer
from dolphin_search.replay.event_stream import fail
from dolphin_search.replay.exchange import Exchange
from dolphin_search.replay.schedule import Address, Schedule

AHEAD_S: Final = 0.25
"""How long before it is due a request is made ready and its connection opened."""


@dataclass(frozen=True, eq=False)
class Replay:
    """Requests for one address.

    Args:
        schedule: what to send and when.
        address: where to.
        is_needed: of which requests the answers are waited for.
    """

    schedule: Schedule
    address: Address
    is_needed: NDArray[np.bool_]


def run_replays(
    replays: Sequence[Replay], *, grace_s: float, on_end: Callable[[Answer], None] = lambda answer: None
) -> list[list[Answer]]:
    """Send all requests, those of several replays at the same time, and return the answers of each in their order.

    Runs an event loop of its own. A replay ends when every needed request has ended, or when the grace is over; what is
    under way then is cancelled by closing its connection.

    Args:
        replays: what to send where.
        grace_s: seconds of the clock, after a replay's last request was due, in which answers may still come.
        on_end: called when a request has ended, needed or not.
    """

    async def run() -> list[list[Answer]]:
        start_s = time.monotonic() + AHEAD_S
        return await asyncio.gather(*(_Run(replay, start_s, on_end).run(grace_s) for replay in replays))

    # What is there now stays: the collector need not stop the clock to look at it.
    gc.collect()
    gc.freeze()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run())
    finally:
        gc.unfreeze()


class _Run:
    def __init__(self, replay: Replay, start_s: float, on_end: Callable[[Answer], None]) -> None:
        self._schedule = replay.schedule
        self._address = replay.address
        self._is_needed = replay.is_needed
        self._on_end = on_end
        self._missing = int(replay.is_needed.sum())
        self._all_ended = asyncio.Event()
        # Of a clock that goes on while the event loop works, other than the loop's own.
        self._start_s = start_s

    async def run(self, grace_s: float) -> list[Answer]:
        schedule = self._schedule
        answers = [Answer(schedule.due_s(row)) for row in range(len(schedule))]
        if not answers:
            return answers
        limit_s = answers[-1].due_s - self._now_s() + grace_s
        sending = asyncio.create_task(self._send_all(answers))
        ended = asyncio.create_task(self._all_ended.wait())
        try:
            await asyncio.wait((sending, ended), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in (sending, ended):
                task.cancel()
            # The tasks of the requests end with the one that started them.
            await asyncio.gather(sending, ended, return_exceptions=True)
        return answers

    async def _send_all(self, answers: list[Answer]) -> None:
        if self._missing == 0:
            self._all_ended.set()
        async with asyncio.TaskGroup() as group:
            for row, answer in enumerate(answers):
                await self._sleep_until(answer.due_s - AHEAD_S)
                group.create_task(self._send(row, answer))

    async def _send(self, row: int, answer: Answer) -> None:
        request = self._schedule.request_bytes(row, self._address)
        loop = asyncio.get_running_loop()
        try:
            _, exchange = await loop.create_connection(
                lambda: Exchange(answer, self._now_s), self._address.host, self._address.port
            )
        except OSError as error:
            answer.sent_s = self._now_s()
            fail(answer, f"no connection: {error.strerror or error}")
        else:
            try:
                await self._sleep_until(answer.due_s)
                exchange.send(request)
                await exchange.ended
            finally:
                exchange.close()
        self._on_end(answer)
        if self._is_needed[row]:
            self._missing -= 1
            if self._missing == 0:
                self._all_ended.set()

    async def _sleep_until(self, due_s: float) -> None:
        remaining_s = due_s - self._now_s()
        if remaining_s > 0.0:
            await asyncio.sleep(remaining_s)

    def _now_s(self) -> float:
        return time.monotonic() - self._start_s
