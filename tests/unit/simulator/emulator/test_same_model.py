"""An emulated worker does what the simulator's worker does, at the same times."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolphin_router.contract import Split
from dolphin_sim.emulator.batch import Batch, Generation, Phase
from dolphin_sim.emulator.memory import Holding, KvMemory
from dolphin_sim.engine.state import Settings
from dolphin_sim.hardware import HardwareProfile, load_profile
from dolphin_sim.hardware.law import engine_settings
from dolphin_sim.policy import always_local, always_remote
from dolphin_sim.simulation import Cluster, simulate
from dolphin_sim.workloads import Requests

BLOCK_TOKENS = 64
ONE_EACH = Split(prefill=1, decode=1)
H20 = load_profile("h20x4-72b")


@dataclass(frozen=True)
class Row:
    """One request: prompts of the same document share all their full blocks."""

    after_s: float
    prompt_tokens: int
    output_tokens: int
    document: int


ROWS = st.lists(
    st.builds(
        Row,
        after_s=st.floats(0.0, 2.0),
        prompt_tokens=st.integers(1, 6_000),
        output_tokens=st.integers(1, 60),
        document=st.integers(0, 5),
    ),
    min_size=1,
    max_size=25,
)


def requests_of(rows: list[Row]) -> Requests:
    blocks = [np.arange(row.prompt_tokens // BLOCK_TOKENS) + 1_000 * row.document for row in rows]
    return Requests.without_inputs(
        arrival_s=np.cumsum([row.after_s for row in rows]),
        prompt_tokens=np.array([row.prompt_tokens for row in rows]),
        output_tokens=np.array([row.output_tokens for row in rows]),
        block_offsets=np.cumsum([0, *map(len, blocks)], dtype=np.int64),
        block_ids=np.concatenate(blocks).astype(np.int64),
        block_tokens=BLOCK_TOKENS,
        component_name="by hand",
    ).check()


def make_batch(engine: Settings, step_tokens: int) -> Batch:
    return Batch(engine, step_tokens=step_tokens, memory=KvMemory(engine))


def generations_of(requests: Requests, *, keeps_kv: bool = False) -> list[Generation]:
    made = []
    for place in range(len(requests)):
        blocks = requests.block_ids[requests.block_offsets[place] : requests.block_offsets[place + 1]].tolist()
        output_tokens = 1 if keeps_kv else int(requests.output_tokens[place])
        prompt_tokens = int(requests.prompt_tokens[place])
        made.append(Generation(prompt_tokens, output_tokens, Holding(blocks), keeps_kv=keeps_kv))
    return made


def run_local(profile: HardwareProfile, requests: Requests) -> list[Generation]:
    engine = engine_settings(profile, ONE_EACH, block_tokens=BLOCK_TOKENS)
    batch = make_batch(engine, profile.decode_step_tokens)
    generations = generations_of(requests)
    for arrival_s, generation in zip(requests.arrival_s.tolist(), generations, strict=True):
        # In the simulator a step that ends at the instant of an arrival ends before it, too.
        batch.advance(arrival_s)
        batch.submit(generation, arrival_s)
    while batch.step_end_s < np.inf:
        batch.advance(batch.step_end_s)
    return generations


def run_remote(profile: HardwareProfile, requests: Requests) -> list[Generation]:
    """Prefill on one worker, decode on another, with the simulator's hand-over between them."""
    engine = engine_settings(profile, ONE_EACH, block_tokens=BLOCK_TOKENS)
    prefill = make_batch(engine, profile.prefill_step_tokens)
    decode = make_batch(engine, profile.decode_step_tokens)
    prompts = generations_of(requests, keeps_kv=True)
    answers = generations_of(requests)
    events: list[tuple[float, int, Callable[[float], None]]] = []
    count = 0

    def at(time_s: float, action: Callable[[float], None]) -> None:
        nonlocal count
        count += 1
        heapq.heappush(events, (time_s, count, action))

    def arrive(place: int) -> Callable[[float], None]:
        return lambda now_s: prefill.submit(prompts[place], now_s)

    def offer(place: int) -> Callable[[float], None]:
        return lambda now_s: decode.expect(answers[place], now_s)

    def deliver(place: int) -> Callable[[float], None]:
        def action(now_s: float) -> None:
            prefill.release_kept(prompts[place], now_s)
            decode.receive(answers[place], now_s)

        return action

    offered: set[int] = set()
    moving: set[int] = set()
    for place, arrival_s in enumerate(requests.arrival_s.tolist()):
        at(arrival_s, arrive(place))
    while True:
        step_end_s = min(prefill.step_end_s, decode.step_end_s)
        if events and events[0][0] < step_end_s:
            now_s, _, action = heapq.heappop(events)
            action(now_s)
        elif step_end_s < np.inf:
            now_s = step_end_s
            prefill.advance(now_s)
            decode.advance(now_s)
        else:
            break
        for place, prompt in enumerate(prompts):
            if prompt.phase is Phase.KEPT and place not in offered:
                offered.add(place)
                at(prompt.finish_s + engine.transfer_overhead_s, offer(place))
            answer = answers[place]
            if answer.phase is Phase.RECEIVING and place not in moving:
                moving.add(place)
                tokens = answer.prompt_tokens - answer.computed_tokens
                at(now_s + tokens * engine.kv_bytes_per_token / engine.link_bytes_per_s, deliver(place))
    return answers


def assert_same(generations: list[Generation], outcomes: Any) -> None:
    assert [each.first_token_s for each in generations] == pytest.approx(outcomes.first_token_s.tolist(), rel=1e-9)
    assert [each.finish_s for each in generations] == pytest.approx(outcomes.finish_s.tolist(), rel=1e-9)
    assert [each.preemptions for each in generations] == outcomes.preemptions.tolist()


@settings(deadline=None, max_examples=60)
@given(rows=ROWS)
def test_local_requests_have_their_tokens_when_the_simulator_says(rows: list[Row]) -> None:
    requests = requests_of(rows)
    outcomes = simulate(Cluster(H20, ONE_EACH), requests, always_local())
    assert_same(run_local(H20, requests), outcomes)
    assert [each.reused_tokens for each in run_local(H20, requests)] == outcomes.reused_tokens.tolist()


@settings(deadline=None, max_examples=30)
@given(rows=ROWS, max_running=st.integers(1, 4), step_tokens=st.integers(64, 700))
def test_so_do_they_in_small_batches_with_small_steps(rows: list[Row], max_running: int, step_tokens: int) -> None:
    profile = H20.replaced(max_running=max_running, decode_step_tokens=step_tokens)
    requests = requests_of(rows)
    assert_same(run_local(profile, requests), simulate(Cluster(profile, ONE_EACH), requests, always_local()))


def test_so_does_a_remote_request_after_its_transfer() -> None:
    # Far enough apart for one transfer at a time: how transfers share a link is for the worker that pulls.
    rows = [Row(4.0, 3_000, 40, 0), Row(4.0, 5_000, 20, 1), Row(4.0, 3_500, 30, 0), Row(4.0, 40, 8, 2)]
    requests = requests_of(rows)
    outcomes = simulate(Cluster(H20, ONE_EACH), requests, always_remote())
    assert_same(run_remote(H20, requests), outcomes)


@settings(deadline=None, max_examples=40)
@given(rows=ROWS)
def test_memory_and_batch_are_empty_once_all_have_ended(rows: list[Row]) -> None:
    profile = H20.replaced(kv_capacity_tokens=6_200, host_tier_tokens=2_000)
    engine = engine_settings(profile, ONE_EACH, block_tokens=BLOCK_TOKENS)
    batch = make_batch(engine, profile.decode_step_tokens)
    generations = generations_of(requests_of(rows))
    now_s = 0.0
    for row, generation in zip(rows, generations, strict=True):
        now_s += row.after_s
        batch.advance(now_s)
        batch.submit(generation, now_s)
    for generation in generations[::3]:
        batch.abort(generation, now_s)
    while batch.step_end_s < np.inf:
        batch.advance(batch.step_end_s)
    assert all(generation.is_over for generation in generations)
    assert batch.running_count == batch.waiting_count == 0
    assert batch.memory.used_share == 0.0
