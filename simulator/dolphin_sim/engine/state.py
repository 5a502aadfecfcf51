"""The arrays that the engine model works on.

Records rather than an array a field: a request's numbers then lie beside each other in memory, and a compiled call
passes a dozen arrays instead of a hundred.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Int32s = NDArray[np.int32]
# Fields of records are known to the compiler, not to a type checker.
Records = Any

NONE = -1

# Queues: one of each kind for each worker, except that the overheads of all transfers are one queue, at worker 0.
WAITING = 0  # for a place in the batch
ARRIVED = 1  # remote requests whose KV cache has arrived
ROOMLESS = 2  # remote requests whose KV cache waits for room on this decode worker
OVERHEAD = 3  # transfers in their fixed overhead
QUEUES = 4

# Path of a request.
LOCAL = 0
REMOTE = 1

# Phase of a request, in the order in which a remote one goes through them.
ARRIVING = 0
QUEUED = 1
PREFILLING = 2
SHIPPING = 3
READY = 4
DECODING = 5
FINISHED = 6
REJECTED = 7

REQUEST = np.dtype(
    [
        # As offered.
        ("arrival_s", np.float64),
        ("prompt_tokens", np.int64),
        ("output_tokens", np.int64),
        ("expected_output_tokens", np.float64),
        ("block_start", np.int64),
        ("block_stop", np.int64),
        ("uniform", np.float64),  # one draw from [0, 1), for rules and ties that are random
        ("index", np.int64),  # position in the whole traffic
        # What the router decided, and what it saw on the two candidates when it did.
        ("path", np.int64),
        ("cluster", np.int64),
        ("prefill_worker", np.int64),
        ("decode_worker", np.int64),
        ("prefill_cached_tokens", np.int64),
        ("decode_cached_tokens", np.int64),
        # What became of it.
        ("first_token_s", np.float64),
        ("finish_s", np.float64),
        ("reused_tokens", np.int64),  # found in the cache when the prefill was scheduled
        ("shipped_tokens", np.int64),
        ("preemptions", np.int64),
        # Where it stands.
        ("phase", np.int64),
        ("next", np.int64),  # the request after it in whichever queue it waits in
        (
            "target_tokens",
            np.int64,
        ),  # to be in the cache before decoding: the prompt and, after a preemption, the answer so far
        ("computed_tokens", np.int64),
        ("chunk_tokens", np.int64),
        ("private_tokens", np.int64),  # KV tokens held for it alone; shared blocks are counted by the cache
        ("held_blocks", np.int64),  # leading blocks of the prompt that it holds a reference on
        ("lent_blocks", np.int64),  # the same two for the prefill worker's copy while the decode worker has one too
        ("lent_tokens", np.int64),
        ("generated_tokens", np.int64),  # answer tokens before it joined the running batch
        ("joined_step", np.int64),
        ("final_step", np.int64),
        ("counted_tokens", np.int64),  # what it adds to its worker's queue_tokens, and so on
        ("counted_s", np.float64),
        ("dispatched_tokens", np.int64),
        ("overhead_end_s", np.float64),
        ("remaining_bytes", np.float64),
    ]
)

WORKER = np.dtype(
    [
        ("step_start_s", np.float64),
        ("step_end_s", np.float64),  # infinite when idle
        ("step_count", np.int64),  # more than 1 only when every step of the run is pure decoding
        ("is_pure_decode", np.int64),
        ("steps_done", np.int64),
        ("first_final_step", np.int64),  # no running request finishes before this step
        ("running_count", np.int64),
        ("prefilling_count", np.int64),
        ("context_tokens", np.int64),  # context length summed over the running batch
        ("private_tokens", np.int64),
        ("sending", np.int64),  # KV transfers it takes part in
        ("queue_tokens", np.int64),  # uncached prompt tokens that wait or are being computed
        ("queue_s", np.float64),  # seconds that computing them alone would take
        (
            "dispatched_tokens",
            np.int64,
        ),  # the same for whole requests whose prefill has not ended: what a router knows by itself
        ("assigned_tokens", np.int64),  # prompt tokens of live requests that decode here or will
        ("computed_tokens", np.int64),
    ]
)

CLOCK = np.dtype(
    [
        ("now_s", np.float64),
        ("next_arrival", np.int64),
        ("events", np.int64),
        ("active_transfers", np.int64),
        ("links_updated_s", np.float64),
        ("next_transfer_end_s", np.float64),
    ]
)


class Settings(NamedTuple):
    """What stays the same during a simulation."""

    prefill_workers: int
    decode_workers: int
    block_tokens: int
    kv_capacity_tokens: int
    prefill_step_tokens: int
    decode_step_tokens: int
    max_running: int
    kv_bytes_per_token: float
    link_bytes_per_s: float
    transfer_overhead_s: float
    host_blocks: int
    host_s_per_token: float
    attention_s_per_pair: float
    decode_attention_s: float
    decode_attention_s_per_token: float
    step_s: Floats
    """Seconds of a step with n new tokens apart from attention, for n = 0 .. the largest step."""


class BlockCache(NamedTuple):
    """The prefix caches of all workers; see :mod:`dolphin_sim.engine.prefix_cache`."""

    bucket: Int32s
    entries: Records
    rows: Records


class Engine(NamedTuple):
    """A cluster and its requests."""

    settings: Settings
    block_ids: Ints
    requests: Records
    workers: Records
    running: Ints
    prefilling: Ints
    queues: Ints
    """First and last request of each queue: kinds by workers by 2."""
    hbm: BlockCache
    host: BlockCache
    transfers: Ints
    clock: Records
