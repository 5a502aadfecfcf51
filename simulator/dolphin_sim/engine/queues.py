"""First-in-first-out queues of requests, linked through the requests' ``next``: some kinds for each worker."""

from __future__ import annotations

from dolphin_sim.compiled import compiled
from dolphin_sim.engine.state import NONE, Engine


@compiled
def push_back(engine: Engine, kind: int, worker: int, r: int) -> None:
    """Append request ``r`` to the queue."""
    engine.requests[r].next = NONE
    last = engine.queues[kind, worker, 1]
    if last == NONE:
        engine.queues[kind, worker, 0] = r
    else:
        engine.requests[last].next = r
    engine.queues[kind, worker, 1] = r


@compiled
def push_front(engine: Engine, kind: int, worker: int, r: int) -> None:
    """Put request ``r`` before all others."""
    first = engine.queues[kind, worker, 0]
    engine.requests[r].next = first
    engine.queues[kind, worker, 0] = r
    if first == NONE:
        engine.queues[kind, worker, 1] = r


@compiled
def front(engine: Engine, kind: int, worker: int) -> int:
    """Return the first request, or ``NONE``."""
    return int(engine.queues[kind, worker, 0])


@compiled
def pop_front(engine: Engine, kind: int, worker: int) -> int:
    """Remove and return the first request. There must be one."""
    r = int(engine.queues[kind, worker, 0])
    engine.queues[kind, worker, 0] = engine.requests[r].next
    if engine.queues[kind, worker, 0] == NONE:
        engine.queues[kind, worker, 1] = NONE
    return r
