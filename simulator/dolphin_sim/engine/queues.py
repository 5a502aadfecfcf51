"""First-in-first-out queues of requests, linked through the requests' ``next``.

A queue is a pair of numbers, its first and its last request: ``engine.queues[kind, worker]``.
"""

from __future__ import annotations

from dolphin_sim.compiled import compiled_inside
from dolphin_sim.engine.state import NONE, Ints, Records


@compiled_inside
def push_back(requests: Records, queue: Ints, r: int) -> None:
    """Append request ``r`` to the queue."""
    requests[r].next = NONE
    if queue[1] == NONE:
        queue[0] = r
    else:
        requests[queue[1]].next = r
    queue[1] = r


@compiled_inside
def push_front(requests: Records, queue: Ints, r: int) -> None:
    """Put request ``r`` before all others."""
    requests[r].next = queue[0]
    queue[0] = r
    if queue[1] == NONE:
        queue[1] = r


@compiled_inside
def pop_front(requests: Records, queue: Ints) -> int:
    """Remove and return the first request. There must be one."""
    r = int(queue[0])
    queue[0] = requests[r].next
    if queue[0] == NONE:
        queue[1] = NONE
    return r
