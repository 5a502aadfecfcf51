"""What the router does with an arriving request: look at the workers, choose candidates, decide, dispatch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dolphin_router import assignment, candidates, features
from dolphin_sim.compiled import compiled, compiled_inside
from dolphin_sim.engine.memory import cached_tokens
from dolphin_sim.engine.state import LOCAL, REJECTED, REMOTE, Engine, Floats, Ints
from dolphin_sim.engine.step_time import prefill_s, transfer_s
from dolphin_sim.engine.worker import enqueue
from dolphin_sim.rules.cost import is_remote_cheaper
from dolphin_sim.rules.dynamo import choose_cheapest, is_bypassed_by_length, is_prefill_busy
from dolphin_sim.rules.length import is_long, is_remote_by_llm_d

# The router's own code, compiled.
choose_prefill_worker: Callable[..., int] = compiled(candidates.choose_prefill_worker)
choose_decode_worker: Callable[..., int] = compiled(candidates.choose_decode_worker)
nearest_centre: Callable[..., tuple[int, float]] = compiled(assignment.nearest_centre)
likeliest_component: Callable[..., tuple[int, float]] = compiled(assignment.likeliest_component)
standardise = compiled(features.standardise)
effective_tokens = compiled(features.effective_tokens)

# Kinds of decider.
BITS_BY_CENTRE = 0
BITS_BY_MIXTURE = 1
ALWAYS_LOCAL = 2
ALWAYS_REMOTE = 3
RANDOM = 4
LENGTH = 5
EFFECTIVE_LENGTH = 6
DYNAMO_ISL_BOUNDING = 7
DYNAMO_ISL_OR_LOAD = 8
LLM_D = 9
COST = 10

# Ways to choose workers.
OUR_CHOICE = 0
DYNAMO_CHOICE = 1
DYNAMO_CONDITIONAL_CHOICE = 2
OUR_CHOICE_BY_DISPATCH = 3  # ours with no more known of queues than a router knows by itself

NO_CLUSTER = -1


class Decider(NamedTuple):
    """A policy in the form that the compiled engine reads."""

    kind: int
    worker_choice: int
    parameters: Floats
    """Thresholds and prices of rules."""
    transform: Floats
    """2 × 4: mean and scale of the features."""
    clusters: Floats
    """K rows: a centre, or what ``assignment.likeliest_component`` reads."""
    actions: Ints
    """K: LOCAL or REMOTE."""


class Scratch(NamedTuple):
    """Working space, one number a worker."""

    cached_tokens: Floats
    load_tokens: Floats
    assigned_tokens: Floats


@compiled_inside
def route(engine: Engine, decider: Decider, scratch: Scratch, r: int, now_s: float) -> None:
    """Decide the path of the request that arrives now and hand it to the first worker on it."""
    request = engine.requests[r]
    settings = engine.settings
    if request.prompt_tokens + request.output_tokens > settings.kv_capacity_tokens:
        request.phase = REJECTED
        return
    for w in range(settings.prefill_workers + settings.decode_workers):
        scratch.cached_tokens[w] = min(cached_tokens(engine, w, r), request.prompt_tokens)
    _choose_workers(engine, decider, scratch, r)
    prefill = request.prefill_worker
    decode = request.decode_worker
    request.prefill_cached_tokens = int(scratch.cached_tokens[prefill])
    request.decode_cached_tokens = int(scratch.cached_tokens[decode])
    request.path = _decide(engine, decider, r)
    engine.workers[decode].assigned_tokens += request.prompt_tokens
    first = prefill if request.path == REMOTE else decode
    cached = request.prefill_cached_tokens if request.path == REMOTE else request.decode_cached_tokens
    request.dispatched_tokens = effective_tokens(request.prompt_tokens, cached)
    engine.workers[first].dispatched_tokens += request.dispatched_tokens
    enqueue(engine, first, r, cached, now_s)


@compiled_inside
def _choose_workers(engine: Engine, decider: Decider, scratch: Scratch, r: int) -> None:
    request = engine.requests[r]
    settings = engine.settings
    prefills = settings.prefill_workers
    decodes = settings.decode_workers
    cached = scratch.cached_tokens
    load = scratch.load_tokens
    assigned = scratch.assigned_tokens
    if decider.worker_choice in (OUR_CHOICE, OUR_CHOICE_BY_DISPATCH):
        by_dispatch = decider.worker_choice == OUR_CHOICE_BY_DISPATCH
        for w in range(prefills + decodes):
            load[w] = engine.workers[w].dispatched_tokens if by_dispatch else engine.workers[w].queue_tokens
            assigned[w] = engine.workers[w].assigned_tokens
        request.prefill_worker = choose_prefill_worker(request.prompt_tokens, cached, load, prefills)
        request.decode_worker = prefills + choose_decode_worker(
            request.prompt_tokens, cached[prefills:], load[prefills:], assigned[prefills:], decodes
        )
        return
    for w in range(prefills):
        load[w] = engine.workers[w].dispatched_tokens
    for w in range(prefills, prefills + decodes):
        load[w] = engine.workers[w].assigned_tokens
        # With conditional disaggregation off the decode hop looks at load only.
        assigned[w] = cached[w] if decider.worker_choice == DYNAMO_CONDITIONAL_CHOICE else 0.0
    block = settings.block_tokens
    prompt = request.prompt_tokens
    request.prefill_worker = choose_cheapest(load, prompt, cached, block, prefills, request.uniform)
    request.decode_worker = prefills + choose_cheapest(
        load[prefills:], prompt, assigned[prefills:], block, decodes, request.uniform
    )


@compiled_inside
def _decide(engine: Engine, decider: Decider, r: int) -> int:
    request = engine.requests[r]
    kind = decider.kind
    if kind in (BITS_BY_CENTRE, BITS_BY_MIXTURE):
        request.cluster = _cluster(decider, engine, r)
        return int(decider.actions[request.cluster])
    if kind == ALWAYS_LOCAL:
        return LOCAL
    prompt = request.prompt_tokens
    decode_cached = request.decode_cached_tokens
    first = decider.parameters[0]
    remote = True
    if kind == RANDOM:
        remote = request.uniform < first
    elif kind == LENGTH:
        remote = is_long(prompt, first)
    elif kind == EFFECTIVE_LENGTH:
        remote = is_long(effective_tokens(prompt, decode_cached), first)
    elif kind == DYNAMO_ISL_BOUNDING:
        remote = not is_bypassed_by_length(prompt, decode_cached, first, decider.parameters[1])
    elif kind == DYNAMO_ISL_OR_LOAD:
        dispatched = engine.workers[request.prefill_worker].dispatched_tokens
        remote = not (
            is_bypassed_by_length(prompt, decode_cached, first, decider.parameters[1])
            or is_prefill_busy(dispatched, decider.parameters[2], engine.settings.prefill_step_tokens)
        )
    elif kind == LLM_D:
        remote = is_remote_by_llm_d(prompt, decode_cached, first)
    elif kind == COST:
        remote = _is_remote_cheaper(engine, r, first)
    return REMOTE if remote else LOCAL


@compiled_inside
def _cluster(decider: Decider, engine: Engine, r: int) -> int:
    request = engine.requests[r]
    mean = decider.transform[0]
    scale = decider.transform[1]
    prompt = request.prompt_tokens
    z0 = standardise(float(prompt), mean[0], scale[0])
    z1 = standardise(float(effective_tokens(prompt, request.prefill_cached_tokens)), mean[1], scale[1])
    z2 = standardise(float(effective_tokens(prompt, request.decode_cached_tokens)), mean[2], scale[2])
    z3 = standardise(request.expected_output_tokens, mean[3], scale[3])
    count = decider.actions.shape[0]
    if decider.kind == BITS_BY_CENTRE:
        return nearest_centre(z0, z1, z2, z3, decider.clusters, count)[0]
    return likeliest_component(z0, z1, z2, z3, decider.clusters, count)[0]


@compiled_inside
def _is_remote_cheaper(engine: Engine, r: int, price: float) -> bool:
    """Apply the cost rule with the queues and the step law exactly as they are: an optimistic bound for such a rule."""
    request = engine.requests[r]
    settings = engine.settings
    prompt = request.prompt_tokens
    prefill = engine.workers[request.prefill_worker]
    decode = engine.workers[request.decode_worker]
    local_tokens = effective_tokens(prompt, request.decode_cached_tokens)
    remote_tokens = effective_tokens(prompt, request.prefill_cached_tokens)
    own_local_s = prefill_s(settings, local_tokens, prompt - local_tokens, settings.decode_step_tokens)
    own_remote_s = prefill_s(settings, remote_tokens, prompt - remote_tokens, settings.prefill_step_tokens)
    local_s = decode.queue_s + own_local_s
    remote_s = prefill.queue_s + own_remote_s + transfer_s(settings, local_tokens)
    return is_remote_cheaper(local_s, remote_s, own_local_s, decode.running_count, price)
