"""Deadlines are noticed in time, and one object's deadline is nobody else's trouble."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any

from dolphin_router.http.deadlines import Deadlines


class Timed:
    def __init__(self, deadline_s: float, act: Any = None) -> None:
        self.deadline_s = deadline_s
        self.called = 0
        self._act = act

    def on_deadline(self) -> None:
        self.called += 1
        self.deadline_s = inf
        if self._act is not None:
            self._act()


class FakeLoop:
    """A clock that is wound by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.planned: list[tuple[float, Any]] = []
        self.problems: list[dict[str, Any]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Any) -> Any:
        self.planned.append((self.now_s + delay_s, callback))
        loop = self

        class Handle:
            def cancel(self) -> None:
                loop.planned.clear()

        return Handle()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.problems.append(context)

    def advance(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.planned and self.planned[0][0] <= until_s:
            self.now_s, callback = self.planned.pop(0)
            callback()
        self.now_s = until_s


def made() -> tuple[Any, Deadlines]:
    loop: Any = FakeLoop()
    return loop, Deadlines(loop, tick_s=0.1)


def test_a_deadline_is_noticed_at_most_one_tick_late_and_once() -> None:
    loop, deadlines = made()
    timed, never = Timed(1.0), Timed(inf)
    deadlines.add(timed)
    deadlines.add(never)
    loop.advance(0.95)
    assert timed.called == 0
    loop.advance(0.2)
    assert timed.called == 1
    loop.advance(10.0)
    assert (timed.called, never.called) == (1, 0)


def test_a_deadline_can_be_moved_and_removed() -> None:
    loop, deadlines = made()
    moved, removed = Timed(1.0), Timed(1.0)
    deadlines.add(moved)
    deadlines.add(removed)
    moved.deadline_s = 2.0
    deadlines.remove(removed)
    deadlines.remove(removed)
    loop.advance(1.5)
    assert moved.called == 0
    loop.advance(1.0)
    assert (moved.called, removed.called) == (1, 0)


def test_what_one_object_does_counts_for_those_after_it() -> None:
    """A request that gives its place to the next one must not see that one's old deadline pass."""
    for _ in range(20):
        loop, deadlines = made()
        objects: list[Timed] = []

        def spare(objects: list[Timed] = objects) -> None:
            for other in objects:
                if other.called == 0:
                    other.deadline_s = 5.0

        objects.extend(Timed(1.0, spare) for _ in range(5))
        for timed in objects:
            deadlines.add(timed)
        loop.advance(1.2)
        assert sum(timed.called for timed in objects) == 1
        droppers: list[Timed] = []

        def drop(droppers: list[Timed] = droppers, deadlines: Deadlines = deadlines) -> None:
            for other in droppers:
                deadlines.remove(other)

        droppers.extend(Timed(2.0, drop) for _ in range(5))
        for timed in droppers:
            deadlines.add(timed)
        loop.advance(1.0)
        assert sum(timed.called for timed in droppers) == 1


def test_a_fault_of_one_object_stops_nobodys_clock() -> None:
    loop, deadlines = made()

    def fail() -> None:
        raise ZeroDivisionError

    good = [Timed(1.0) for _ in range(5)]
    later = Timed(2.0)
    for timed in (*good[:3], Timed(1.0, fail), *good[3:], later):
        deadlines.add(timed)
    loop.advance(3.0)
    assert [timed.called for timed in (*good, later)] == [1] * 6
    assert [type(problem["exception"]) for problem in loop.problems] == [ZeroDivisionError]


def test_without_objects_nothing_is_planned() -> None:
    loop, deadlines = made()
    timed = Timed(0.5)
    deadlines.add(timed)
    assert len(deadlines) == 1
    deadlines.remove(timed)
    loop.advance(1.0)
    assert loop.planned == []
    deadlines.add(Timed(inf))
    assert loop.planned != []
    deadlines.close()
    deadlines.add(Timed(0.0))
    assert (loop.planned, len(deadlines)) == ([], 0)


def test_it_works_on_a_real_loop() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        deadlines = Deadlines(loop, tick_s=0.01)
        done = asyncio.Event()
        deadlines.add(Timed(loop.time() + 0.03, done.set))
        async with asyncio.timeout(2.0):
            await done.wait()
        deadlines.close()

    asyncio.run(run())
