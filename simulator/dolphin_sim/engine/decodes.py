"""The running batch of a worker: requests that get a token of their answer in each step."""

from __future__ import annotations

from dolphin_sim.compiled import compiled_inside
from dolphin_sim.engine.memory import release
from dolphin_sim.engine.state import DECODING, FINISHED, Engine

NEVER_STEP = 1 << 62
"""The final step of an empty batch."""


@compiled_inside
def join(engine: Engine, worker: int, r: int, generated: int) -> None:
    """Add a request, with ``generated`` answer tokens so far, to the running batch."""
    state = engine.workers[worker]
    request = engine.requests[r]
    request.phase = DECODING
    request.generated_tokens = generated
    request.joined_step = state.steps_done
    request.final_step = state.steps_done + request.output_tokens - generated
    engine.running[worker, state.running_count] = r
    state.running_count += 1
    state.context_tokens += request.prompt_tokens + generated
    state.first_final_step = min(state.first_final_step, request.final_step)


@compiled_inside
def leave(engine: Engine, worker: int, r: int) -> int:
    """Undo the joining in the batch's sums, not in its list, and return the tokens generated in it."""
    state = engine.workers[worker]
    request = engine.requests[r]
    grown = state.steps_done - request.joined_step
    state.context_tokens -= request.prompt_tokens + request.generated_tokens + grown
    request.generated_tokens += grown
    return int(grown)


@compiled_inside
def finish_decodes(engine: Engine, worker: int, now_s: float) -> None:
    """Take the requests out of the batch whose last token has come."""
    state = engine.workers[worker]
    kept = 0
    first_final_step = NEVER_STEP
    for i in range(state.running_count):
        r = engine.running[worker, i]
        request = engine.requests[r]
        if request.final_step <= state.steps_done:
            release(engine, worker, r, leave(engine, worker, r))
            finish(engine, r, now_s)
        else:
            engine.running[worker, kept] = r
            kept += 1
            first_final_step = min(first_final_step, request.final_step)
    state.running_count = kept
    state.first_final_step = first_final_step


@compiled_inside
def finish(engine: Engine, r: int, now_s: float) -> None:
    """Note the end of a request, which has given its memory back."""
    request = engine.requests[r]
    request.phase = FINISHED
    request.finish_s = now_s
    engine.workers[request.decode_worker].assigned_tokens -= request.prompt_tokens
