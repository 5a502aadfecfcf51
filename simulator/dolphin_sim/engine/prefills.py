"""The prompts of a worker: those in its queue, and those whose chunks fill what the decodes leave of a step."""

from __future__ import annotations

from dolphin_sim.compiled import compiled_inside
from dolphin_sim.engine.decodes import finish, join
from dolphin_sim.engine.links import start_overhead
from dolphin_sim.engine.memory import admit, release, share_blocks
from dolphin_sim.engine.queues import pop_front
from dolphin_sim.engine.state import NONE, PREFILLING, SHIPPING, WAITING, Engine, Settings
from dolphin_sim.engine.step_time import attention_pairs, prefill_s


@compiled_inside
def count_in_queue(engine: Engine, worker: int, r: int, cached: int) -> None:
    """Set what the request adds to the worker's queue, now that ``cached`` of its tokens are thought to be there."""
    request = engine.requests[r]
    state = engine.workers[worker]
    settings = engine.settings
    step_tokens = step_budget_tokens(settings, worker)
    tokens = request.target_tokens - cached
    seconds = prefill_s(settings, tokens, cached, step_tokens)
    state.queue_tokens += tokens - request.counted_tokens
    state.queue_s += seconds - request.counted_s
    request.counted_tokens = tokens
    request.counted_s = seconds


@compiled_inside
def step_budget_tokens(settings: Settings, worker: int) -> int:
    """Return how many tokens a step of the worker may compute."""
    return settings.prefill_step_tokens if worker < settings.prefill_workers else settings.decode_step_tokens


@compiled_inside
def schedule_prefills(engine: Engine, worker: int, budget: int, admitting: bool) -> tuple[int, float, float]:
    """Give out ``budget`` tokens, to new requests only when ``admitting``.

    Returns the tokens given, their attention pairs, and the seconds of reads from the host tier.
    """
    state = engine.workers[worker]
    given = 0
    pairs = 0.0
    load_s = 0.0
    for i in range(state.prefilling_count):
        request = engine.requests[engine.prefilling[worker, i]]
        chunk = min(budget - given, request.target_tokens - request.computed_tokens)
        request.chunk_tokens = chunk
        given += chunk
        pairs += attention_pairs(float(chunk), float(request.computed_tokens))
    places = engine.settings.max_running - state.running_count
    while admitting and given < budget and state.prefilling_count < places:
        r = int(engine.queues[WAITING, worker, 0])
        if r == NONE:
            break
        # The cache is looked up now, not when the request came: what was computed meanwhile counts.
        seconds = admit(engine, worker, r)
        if seconds < 0.0:
            break
        pop_front(engine.requests, engine.queues[WAITING, worker])
        request = engine.requests[r]
        request.phase = PREFILLING
        request.reused_tokens = request.computed_tokens
        count_in_queue(engine, worker, r, request.computed_tokens)
        chunk = min(budget - given, request.target_tokens - request.computed_tokens)
        request.chunk_tokens = chunk
        given += chunk
        pairs += attention_pairs(float(chunk), float(request.computed_tokens))
        load_s += seconds
        engine.prefilling[worker, state.prefilling_count] = r
        state.prefilling_count += 1
    return given, pairs, load_s


@compiled_inside
def advance_prefills(engine: Engine, worker: int, now_s: float) -> None:
    """Account for the chunks of the step that ends now, and send on the prompts that are complete."""
    state = engine.workers[worker]
    kept = 0
    for i in range(state.prefilling_count):
        r = engine.prefilling[worker, i]
        request = engine.requests[r]
        request.computed_tokens += request.chunk_tokens
        state.computed_tokens += request.chunk_tokens
        share_blocks(engine, worker, r, request.computed_tokens)
        if request.computed_tokens < request.target_tokens:
            seconds = request.counted_s * request.chunk_tokens / request.counted_tokens
            state.queue_tokens -= request.chunk_tokens
            state.queue_s -= seconds
            request.counted_tokens -= request.chunk_tokens
            request.counted_s -= seconds
            engine.prefilling[worker, kept] = r
            kept += 1
        else:
            state.queue_tokens -= request.counted_tokens
            state.queue_s -= request.counted_s
            request.counted_tokens = 0
            request.counted_s = 0.0
            _complete_prefill(engine, worker, r, now_s)
        request.chunk_tokens = 0
    state.prefilling_count = kept
    if engine.queues[WAITING, worker, 0] == NONE and kept == 0:
        # Sums of parts differ from the whole by rounding errors, which would pile up for ever.
        state.queue_s = 0.0


@compiled_inside
def _complete_prefill(engine: Engine, worker: int, r: int, now_s: float) -> None:
    request = engine.requests[r]
    # A router knows of a prefill's end by the worker's answer: of a remote one by the prefill worker's, before the
    # transfer.
    engine.workers[worker].dispatched_tokens -= request.dispatched_tokens
    request.dispatched_tokens = 0
    if worker < engine.settings.prefill_workers:
        request.phase = SHIPPING
        start_overhead(engine, r, now_s)
        return
    # The step that computes the last prompt token also yields the next token of the answer.
    if request.first_token_s == float("inf"):
        request.first_token_s = now_s
    if request.generated_tokens + 1 >= request.output_tokens:
        release(engine, worker, r, 0)
        finish(engine, r, now_s)
    else:
        join(engine, worker, r, request.generated_tokens + 1)
