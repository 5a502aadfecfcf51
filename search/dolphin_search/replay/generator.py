"""The load generator: sends each request when it is due, whatever the answers do."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
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


def replay(
    schedule: Schedule,
    address: Address,
    *,
    grace_s: float,
    is_needed: NDArray[np.bool_] | None = None,
    on_end: Callable[[Answer], None] = lambda answer: None,
) -> list[Answer]:
    """Send all requests and return their answers, in the order of the schedule.

    Runs an event loop of its own. Ends when every needed request has ended, or when the grace is over; requests that
    are under way are then cancelled by closing their connections.

    Args:
        schedule: what to send and when.
        address: where to.
        grace_s: seconds of the clock, after the last request was due, in which answers may still come.
        is_needed: of which requests the answers are waited for; None for all.
        on_end: called when a request has ended.
    """
    # What is there now stays: the collector need not stop the clock to look at it.
    gc.collect()
    gc.freeze()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_Replay(schedule, address, is_needed, on_end).run(grace_s))
    finally:
        gc.unfreeze()


class _Replay:
    def __init__(
        self,
        schedule: Schedule,
        address: Address,
        is_needed: NDArray[np.bool_] | None,
        on_end: Callable[[Answer], None],
    ) -> None:
        self._schedule = schedule
        self._address = address
        self._is_needed = np.ones(len(schedule), dtype=np.bool_) if is_needed is None else is_needed
        self._on_end = on_end
        self._missing = int(self._is_needed.sum())
        self._all_ended = asyncio.Event()
        # Not the event loop's clock, which stands still while the loop works.
        self._start_s = time.monotonic() + AHEAD_S

    async def run(self, grace_s: float) -> list[Answer]:
        schedule = self._schedule
        answers = [Answer(schedule.due_s(row)) for row in range(len(schedule))]
        if not answers:
            return answers
        sending = asyncio.create_task(self._send_all(answers))
        try:
            async with asyncio.timeout(answers[-1].due_s - self._now_s() + grace_s):
                await self._all_ended.wait()
        except TimeoutError:
            pass
        finally:
            sending.cancel()
            # The tasks of its requests end with it.
            await asyncio.gather(sending, return_exceptions=True)
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
