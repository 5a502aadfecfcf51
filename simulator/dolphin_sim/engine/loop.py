"""The event loop in virtual time."""

from __future__ import annotations

from dolphin_sim.compiled import compiled, compiled_inside
from dolphin_sim.engine.links import end_overhead, end_transfer
from dolphin_sim.engine.routing import Decider, Scratch, route
from dolphin_sim.engine.state import NONE, OVERHEAD, Engine
from dolphin_sim.engine.worker import end_step, offer_kv, receive, return_kv

# Kinds of event, in the order in which events of one instant happen.
STEP = 0
TRANSFER = 1
HANDOVER = 2
ARRIVAL = 3


@compiled
def advance(engine: Engine, decider: Decider, scratch: Scratch, until_s: float) -> None:
    """Let all happen that happens before or at ``until_s``. Called again, it goes on from there."""
    clock = engine.clock[0]
    requests = engine.requests
    while True:
        kind = STEP
        worker = _first_to_end(engine)
        soonest_s = engine.workers[worker].step_end_s
        if clock.next_transfer_end_s < soonest_s:
            soonest_s = clock.next_transfer_end_s
            kind = TRANSFER
        handover = int(engine.queues[OVERHEAD, 0, 0])
        if handover != NONE and requests[handover].overhead_end_s < soonest_s:
            soonest_s = requests[handover].overhead_end_s
            kind = HANDOVER
        if clock.next_arrival < requests.shape[0] and requests[clock.next_arrival].arrival_s < soonest_s:
            soonest_s = requests[clock.next_arrival].arrival_s
            kind = ARRIVAL
        if soonest_s > until_s or soonest_s == float("inf"):
            return
        clock.now_s = soonest_s
        clock.events += 1
        if kind == STEP:
            end_step(engine, worker)
        elif kind == TRANSFER:
            r = end_transfer(engine, soonest_s)
            # First the copy at the prefill worker, whose room others may wait for; then the request goes on.
            return_kv(engine, r, soonest_s)
            receive(engine, r, soonest_s)
        elif kind == HANDOVER:
            offer_kv(engine, end_overhead(engine), soonest_s)
        else:
            r = clock.next_arrival
            clock.next_arrival += 1
            route(engine, decider, scratch, r, soonest_s)


@compiled_inside
def _first_to_end(engine: Engine) -> int:
    """Return the worker whose step ends first; the first one when all are idle."""
    first = 0
    for w in range(1, engine.settings.prefill_workers + engine.settings.decode_workers):
        if engine.workers[w].step_end_s < engine.workers[first].step_end_s:
            first = w
    return first
