"""KV transfers between workers: a fixed overhead each, then bandwidth shared with other transfers at both ends."""

from __future__ import annotations

from dolphin_sim.compiled import compiled_inside
from dolphin_sim.engine.queues import pop_front, push_back
from dolphin_sim.engine.state import OVERHEAD, Engine


@compiled_inside
def start_overhead(engine: Engine, r: int, now_s: float) -> None:
    """Begin the hand-over of a finished prefill. All overheads last equally long, so they end in order."""
    engine.requests[r].overhead_end_s = now_s + engine.settings.transfer_overhead_s
    push_back(engine.requests, engine.queues[OVERHEAD, 0], r)


@compiled_inside
def end_overhead(engine: Engine) -> int:
    """Return the request whose overhead ends first, taken from the queue."""
    return pop_front(engine.requests, engine.queues[OVERHEAD, 0])


@compiled_inside
def start_transfer(engine: Engine, r: int, tokens: int, now_s: float) -> None:
    """Begin to move ``tokens`` tokens of request ``r`` from its prefill to its decode worker."""
    _advance_transfers(engine, now_s)
    request = engine.requests[r]
    request.shipped_tokens = tokens
    request.remaining_bytes = tokens * engine.settings.kv_bytes_per_token
    clock = engine.clock[0]
    engine.transfers[clock.active_transfers] = r
    clock.active_transfers += 1
    engine.workers[request.prefill_worker].sending += 1
    engine.workers[request.decode_worker].sending += 1
    _plan_next_end(engine)


@compiled_inside
def end_transfer(engine: Engine, now_s: float) -> int:
    """Return the request whose transfer ends now, taken from the links. Of equal ones, the one that started first."""
    _advance_transfers(engine, now_s)
    clock = engine.clock[0]
    first = 0
    for i in range(1, clock.active_transfers):
        if _seconds_left(engine, engine.transfers[i]) < _seconds_left(engine, engine.transfers[first]):
            first = i
    r = int(engine.transfers[first])
    for i in range(first, clock.active_transfers - 1):
        engine.transfers[i] = engine.transfers[i + 1]
    clock.active_transfers -= 1
    request = engine.requests[r]
    engine.workers[request.prefill_worker].sending -= 1
    engine.workers[request.decode_worker].sending -= 1
    # What was left is a rounding error.
    request.remaining_bytes = 0.0
    _plan_next_end(engine)
    return r


@compiled_inside
def _rate(engine: Engine, r: int) -> float:
    request = engine.requests[r]
    sharers = max(
        engine.workers[request.prefill_worker].sending,
        engine.workers[request.decode_worker].sending,
    )
    return engine.settings.link_bytes_per_s / float(sharers)


@compiled_inside
def _seconds_left(engine: Engine, r: int) -> float:
    return float(max(engine.requests[r].remaining_bytes, 0.0)) / _rate(engine, r)


@compiled_inside
def _advance_transfers(engine: Engine, now_s: float) -> None:
    clock = engine.clock[0]
    elapsed_s = now_s - clock.links_updated_s
    for i in range(clock.active_transfers):
        r = engine.transfers[i]
        engine.requests[r].remaining_bytes -= elapsed_s * _rate(engine, r)
    clock.links_updated_s = now_s


@compiled_inside
def _plan_next_end(engine: Engine) -> None:
    clock = engine.clock[0]
    soonest_s = float("inf")
    for i in range(clock.active_transfers):
        soonest_s = min(soonest_s, _seconds_left(engine, engine.transfers[i]))
    clock.next_transfer_end_s = clock.links_updated_s + soonest_s
