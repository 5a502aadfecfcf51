"""A worker's simulated time, driven by the wall clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dolphin_sim.emulator.batch import IDLE_S, Batch, Generation


class Pacer:
    """Lets each step of a batch end when the wall clock says so.

    Simulated times are exact: a step begins when the one before it ended, however late this process woke up, so that
    delays of the machine do not add up.

    Args:
        batch: the worker.
        time_scale: simulated seconds in a second.
    """

    def __init__(self, batch: Batch, *, time_scale: float) -> None:
        self.batch = batch
        self.time_scale = time_scale
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._reached_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._armed_s = IDLE_S

    def now_s(self) -> float:
        """Return the simulated time."""
        self._reached_s = max(self._reached_s, (self._loop.time() - self._started) * self.time_scale)
        return self._reached_s

    def wall_s(self, simulated_s: float) -> float:
        """Return how long a span of simulated time lasts."""
        return simulated_s / self.time_scale

    def submit(self, generation: Generation) -> None:
        """See ``Batch.submit``."""
        self._do(self.batch.submit, generation)

    def expect(self, generation: Generation) -> None:
        """See ``Batch.expect``."""
        self._do(self.batch.expect, generation)

    def receive(self, generation: Generation) -> None:
        """See ``Batch.receive``."""
        self._do(self.batch.receive, generation)

    def abort(self, generation: Generation) -> None:
        """See ``Batch.abort``."""
        self._do(self.batch.abort, generation)

    def release_kept(self, generation: Generation) -> None:
        """See ``Batch.release_kept``."""
        self._do(self.batch.release_kept, generation)

    def stop(self) -> None:
        """Let no more steps end."""
        if self._timer is not None:
            self._timer.cancel()

    def _do(self, action: Callable[[Generation, float], None], generation: Generation) -> None:
        now_s = self.now_s()
        self.batch.advance(now_s)
        action(generation, now_s)
        self._arm()

    def _arm(self) -> None:
        next_s = self.batch.step_end_s
        if next_s == self._armed_s:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._armed_s = next_s
        if next_s != IDLE_S:
            self._timer = self._loop.call_at(self._started + next_s / self.time_scale, self._fire)

    def _fire(self) -> None:
        # Event loops fire up to a clock tick early.
        self._reached_s = max(self.now_s(), self._armed_s)
        self._timer = None
        self._armed_s = IDLE_S
        self.batch.advance(self._reached_s)
        self._arm()
