"""One worker's continuous batching, in the manner of vLLM's v1 scheduler.

A step computes one token for every running request, then prefill chunks, first come first served, in what is left of
the step's token budget; so a local prefill slows the decodes beside it. Prefill workers run the same loop and never
decode: a finished prefill goes to the links instead of the batch.

A run of steps that are nothing but decoding is one event. It is cut at the next step boundary when something arrives.
"""

from __future__ import annotations

from dolphin_sim.compiled import compiled_inside
from dolphin_sim.engine.decodes import finish_decodes, join, leave
from dolphin_sim.engine.links import start_transfer
from dolphin_sim.engine.memory import admit, free_tokens, release, share_blocks, take_tokens
from dolphin_sim.engine.prefills import advance_prefills, count_in_queue, schedule_prefills, step_budget_tokens
from dolphin_sim.engine.queues import pop_front, push_back, push_front
from dolphin_sim.engine.state import ARRIVED, NONE, QUEUED, READY, ROOMLESS, WAITING, Engine
from dolphin_sim.engine.step_time import decode_attention_s

# A run takes the memory for all its steps when it begins, which evicts cached blocks before their time. This bounds how
# many, and the work of planning a run that is cut soon after.
LONGEST_RUN_STEPS = 128


@compiled_inside
def enqueue(engine: Engine, worker: int, r: int, cached: int, now_s: float) -> None:
    """Hand a new request to the worker, which may be idle, in a step, or in a run of decode steps."""
    request = engine.requests[r]
    request.phase = QUEUED
    request.target_tokens = request.prompt_tokens
    count_in_queue(engine, worker, r, min(cached, request.prompt_tokens - 1))
    push_back(engine.requests, engine.queues[WAITING, worker], r)
    wake(engine, worker, now_s)


@compiled_inside
def receive(engine: Engine, r: int, now_s: float) -> None:
    """Let the decode worker of a remote request take it up: its KV cache has arrived."""
    request = engine.requests[r]
    request.phase = READY
    request.computed_tokens = request.prompt_tokens
    share_blocks(engine, request.decode_worker, r, request.prompt_tokens)
    push_back(engine.requests, engine.queues[ARRIVED, request.decode_worker], r)
    wake(engine, request.decode_worker, now_s)


@compiled_inside
def offer_kv(engine: Engine, r: int, now_s: float) -> None:
    """Start the transfer of a finished prefill to its decode worker as soon as that has room."""
    worker = engine.requests[r].decode_worker
    push_back(engine.requests, engine.queues[ROOMLESS, worker], r)
    _ship_where_room(engine, worker, now_s)
    if engine.queues[ROOMLESS, worker, 0] != NONE:
        # A run of decode steps holds the memory of steps that are still to come: it gives that back when it is cut.
        wake(engine, worker, now_s)
        _ship_where_room(engine, worker, now_s)


@compiled_inside
def _ship(engine: Engine, r: int, now_s: float) -> bool:
    request = engine.requests[r]
    # References and private tokens now become those on the decode worker; the prefill worker's are restored on release.
    held_at_prefill = request.held_blocks
    private_at_prefill = request.private_tokens
    load_s = admit(engine, request.decode_worker, r)
    if load_s < 0.0:
        request.held_blocks = held_at_prefill
        request.private_tokens = private_at_prefill
        return False
    request.lent_blocks = held_at_prefill
    request.lent_tokens = private_at_prefill
    start_transfer(engine, r, request.prompt_tokens - request.computed_tokens, now_s)
    return True


@compiled_inside
def return_kv(engine: Engine, r: int, now_s: float) -> None:
    """Free the prefill worker's copy of a request whose KV cache has arrived at its decode worker."""
    request = engine.requests[r]
    held_at_decode = request.held_blocks
    private_at_decode = request.private_tokens
    request.held_blocks = request.lent_blocks
    request.private_tokens = request.lent_tokens
    release(engine, request.prefill_worker, r, 0)
    request.held_blocks = held_at_decode
    request.private_tokens = private_at_decode
    wake(engine, request.prefill_worker, now_s)


@compiled_inside
def wake(engine: Engine, worker: int, now_s: float) -> None:
    """Let the worker look at its queues: at once when idle, else at the end of the step that runs."""
    state = engine.workers[worker]
    if state.step_end_s == float("inf"):
        begin_step(engine, worker, now_s)
    elif state.is_pure_decode == 1 and state.step_count > 1:
        _cut_run(engine, worker, now_s)


@compiled_inside
def begin_step(engine: Engine, worker: int, now_s: float) -> None:
    """Form the next batch and plan its end."""
    state = engine.workers[worker]
    settings = engine.settings
    budget = step_budget_tokens(settings, worker)
    already_running = state.running_count
    while True:
        while (
            engine.queues[ARRIVED, worker, 0] != NONE
            and state.running_count + state.prefilling_count < settings.max_running
        ):
            join(engine, worker, pop_front(engine.requests, engine.queues[ARRIVED, worker]), 0)
        preempted = _make_room(engine, worker)
        already_running = min(already_running, state.running_count)
        # When all had to give way, others may take their places: with none running nothing would wake the worker.
        if not preempted or state.running_count > 0:
            break
    decodes = state.running_count
    # Memory for a run's tokens is taken when the run begins, since transfers may take more while it lasts.
    take_tokens(engine, worker, decodes)
    prefill_tokens, pairs, load_s = schedule_prefills(engine, worker, max(budget - decodes, 0), not preempted)
    state.step_start_s = now_s
    if prefill_tokens == 0 and decodes == 0:
        state.step_end_s = float("inf")
        return
    first_step_s = (
        settings.step_s[prefill_tokens + decodes]
        + settings.attention_s_per_pair * pairs
        + decode_attention_s(settings, decodes, state.context_tokens)
        + load_s
    )
    # The first step is never cut, so those that have just joined have their first token at its end.
    for i in range(already_running, state.running_count):
        request = engine.requests[engine.running[worker, i]]
        if request.first_token_s == float("inf"):
            request.first_token_s = now_s + first_step_s
    state.is_pure_decode = 1 if prefill_tokens == 0 else 0
    state.step_count = 1
    state.step_end_s = now_s + first_step_s
    if prefill_tokens == 0:
        steps = min(state.first_final_step - state.steps_done, 1 + free_tokens(engine, worker) // decodes)
        _lengthen_run(engine, worker, min(steps, LONGEST_RUN_STEPS), float("inf"))
        take_tokens(engine, worker, decodes * (state.step_count - 1))


@compiled_inside
def end_step(engine: Engine, worker: int) -> None:
    """Account for the step or run that ends now, and begin the next."""
    state = engine.workers[worker]
    now_s = state.step_end_s
    steps = state.step_count
    state.step_end_s = float("inf")
    if state.running_count > 0:
        state.steps_done += steps
        state.context_tokens += state.running_count * steps
        if state.steps_done >= state.first_final_step:
            finish_decodes(engine, worker, now_s)
    if state.prefilling_count > 0:
        advance_prefills(engine, worker, now_s)
    _ship_where_room(engine, worker, now_s)
    begin_step(engine, worker, now_s)


@compiled_inside
def _cut_run(engine: Engine, worker: int, now_s: float) -> None:
    """Let the run end at its first step boundary that is not before ``now_s``."""
    state = engine.workers[worker]
    steps = state.step_count
    decodes = state.running_count
    state.step_count = 1
    # The same sum as in `begin_step`, to the last bit: the first tokens were promised for its end.
    first_step_s = engine.settings.step_s[decodes] + decode_attention_s(engine.settings, decodes, state.context_tokens)
    state.step_end_s = state.step_start_s + first_step_s
    _lengthen_run(engine, worker, steps, now_s)
    state.private_tokens -= decodes * (steps - state.step_count)


@compiled_inside
def _lengthen_run(engine: Engine, worker: int, steps: int, until_s: float) -> None:
    """Append decode steps to a run of one until it has ``steps`` or ends at or after ``until_s``."""
    state = engine.workers[worker]
    settings = engine.settings
    decodes = state.running_count
    end_s = state.step_end_s
    context_tokens = state.context_tokens + decodes
    count = 1
    while count < steps and end_s < until_s:
        end_s += settings.step_s[decodes] + decode_attention_s(settings, decodes, context_tokens)
        context_tokens += decodes
        count += 1
    state.step_end_s = end_s
    state.step_count = count


@compiled_inside
def _make_room(engine: Engine, worker: int) -> bool:
    """Preempt the latest until every running request can grow by a token; tell if any was.

    As in vLLM, a preempted request gives up its memory, goes back to the head of the queue, and is computed again.
    """
    state = engine.workers[worker]
    preempted = False
    while free_tokens(engine, worker) < state.running_count:
        grown = 0
        if state.prefilling_count > 0:
            state.prefilling_count -= 1
            r = engine.prefilling[worker, state.prefilling_count]
        else:
            state.running_count -= 1
            r = engine.running[worker, state.running_count]
            grown = leave(engine, worker, r)
        request = engine.requests[r]
        release(engine, worker, r, grown)
        request.preemptions += 1
        request.phase = QUEUED
        request.target_tokens = request.prompt_tokens + request.generated_tokens
        request.computed_tokens = 0
        count_in_queue(engine, worker, r, 0)
        push_front(engine.requests, engine.queues[WAITING, worker], r)
        preempted = True
    return preempted


@compiled_inside
def _ship_where_room(engine: Engine, worker: int, now_s: float) -> None:
    """Start transfers to the worker, first come first served, until one has to wait."""
    while engine.queues[ROOMLESS, worker, 0] != NONE:
        if not _ship(engine, int(engine.queues[ROOMLESS, worker, 0]), now_s):
            break
        pop_front(engine.requests, engine.queues[ROOMLESS, worker])
