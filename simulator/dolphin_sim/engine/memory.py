"""KV memory of a worker: prefix blocks that requests share, and tokens that one request has for itself."""

from __future__ import annotations

from dolphin_sim.compiled import compiled_inside
from dolphin_sim.engine.prefix_cache import evict_oldest, find, hold, insert, let_go, remember
from dolphin_sim.engine.state import NONE, Engine


@compiled_inside
def cached_tokens(engine: Engine, worker: int, r: int) -> int:
    """Return how many leading prompt tokens of request ``r`` the worker holds, in its GPU memory or its host tier."""
    request = engine.requests[r]
    at = request.block_start
    while at < request.block_stop:
        block = engine.block_ids[at]
        if find(engine.hbm, worker, block) == NONE and (
            engine.settings.host_blocks == 0 or find(engine.host, worker, block) == NONE
        ):
            break
        at += 1
    return int(at - request.block_start) * engine.settings.block_tokens


@compiled_inside
def free_tokens(engine: Engine, worker: int) -> int:
    """Return the tokens that can be had on the worker, counting what may be evicted."""
    row = engine.hbm.rows[worker]
    pinned_blocks = row.resident - row.idle
    held = engine.workers[worker].private_tokens + pinned_blocks * engine.settings.block_tokens
    return engine.settings.kv_capacity_tokens - int(held)


@compiled_inside
def take_tokens(engine: Engine, worker: int, tokens: int) -> None:
    """Make ``tokens`` private tokens, evicting as needed. :func:`free_tokens` must allow it."""
    settings = engine.settings
    engine.workers[worker].private_tokens += tokens
    used = engine.workers[worker].private_tokens + engine.hbm.rows[worker].resident * settings.block_tokens
    while used > settings.kv_capacity_tokens:
        block = evict_oldest(engine.hbm, worker)
        if settings.host_blocks > 0:
            remember(engine.host, worker, block)
        used -= settings.block_tokens


@compiled_inside
def admit(engine: Engine, worker: int, r: int) -> float:
    """Reserve memory for all of the request's ``target_tokens`` on the worker and take what is cached.

    Returns the seconds to read blocks back from the host tier, or -1.0, with nothing changed, when there is no room.
    """
    request = engine.requests[r]
    block_tokens = engine.settings.block_tokens
    start = request.block_start
    blocks = request.block_stop - start
    # Reusing an idle block takes as much memory as it saves, so only a request that does not fit as it stands has to be
    # looked at closely. Nothing is held before it is sure to fit, so that waiting does not make its blocks newer.
    if request.target_tokens > free_tokens(engine, worker) and not _fits_with_shared_blocks(engine, worker, r):
        return -1.0
    held = 0
    while held < blocks:
        entry = find(engine.hbm, worker, engine.block_ids[start + held])
        if entry == NONE:
            break
        hold(engine.hbm, worker, entry)
        held += 1
    request.held_blocks = held
    needed = request.target_tokens - held * block_tokens
    # Which blocks the host tier holds is asked before room is made, since evicted blocks go there.
    loaded = 0
    if engine.settings.host_blocks > 0:
        while held + loaded < blocks:
            if find(engine.host, worker, engine.block_ids[start + held + loaded]) == NONE:
                break
            loaded += 1
    take_tokens(engine, worker, needed)
    request.private_tokens = needed
    available = (held + loaded) * block_tokens
    share_blocks(engine, worker, r, available)
    # An engine computes at least the last token, since it needs that token's output.
    request.computed_tokens = min(available, request.target_tokens - 1)
    return loaded * block_tokens * engine.settings.host_s_per_token


@compiled_inside
def share_blocks(engine: Engine, worker: int, r: int, computed_tokens: int) -> None:
    """Put the blocks that are complete with ``computed_tokens`` into the cache, out of this request's private
    tokens."""
    request = engine.requests[r]
    block_tokens = engine.settings.block_tokens
    complete = min(computed_tokens // block_tokens, request.block_stop - request.block_start)
    while request.held_blocks < complete:
        block = engine.block_ids[request.block_start + request.held_blocks]
        request.private_tokens -= block_tokens
        engine.workers[worker].private_tokens -= block_tokens
        # Another request may have computed the same block meanwhile: then one copy is enough.
        entry = find(engine.hbm, worker, block)
        if entry == NONE:
            insert(engine.hbm, worker, block)
        else:
            hold(engine.hbm, worker, entry)
        request.held_blocks += 1


@compiled_inside
def release(engine: Engine, worker: int, r: int, grown_tokens: int) -> None:
    """Give back all memory of the request on the worker; ``grown_tokens`` were added since it was admitted."""
    _let_go_blocks(engine, worker, r)
    engine.workers[worker].private_tokens -= engine.requests[r].private_tokens + grown_tokens
    engine.requests[r].private_tokens = 0


@compiled_inside
def _fits_with_shared_blocks(engine: Engine, worker: int, r: int) -> bool:
    """Tell whether there is room for what the request does not share with requests that hold the same blocks."""
    request = engine.requests[r]
    needed = request.target_tokens
    for at in range(request.block_start, request.block_stop):
        entry = find(engine.hbm, worker, engine.block_ids[at])
        if entry == NONE:
            break
        if engine.hbm.entries[worker, entry].references > 0:
            needed -= engine.settings.block_tokens
    return bool(needed <= free_tokens(engine, worker))


@compiled_inside
def _let_go_blocks(engine: Engine, worker: int, r: int) -> None:
    request = engine.requests[r]
    for i in range(request.held_blocks - 1, -1, -1):
        let_go(engine.hbm, worker, find(engine.hbm, worker, engine.block_ids[request.block_start + i]))
    request.held_blocks = 0
