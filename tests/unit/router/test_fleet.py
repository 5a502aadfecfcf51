"""The workers that the router knows, and what it has given them to do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolphin_router.exchange.admission import Admission
from dolphin_router.exchange.retry_budget import RetryBudget
from dolphin_router.fleet import Claim, Fleet, WorkerState
from dolphin_router.worker import Worker, WorkerRole


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    loop = asyncio.new_event_loop()
    yield Fleet(loop, connect_timeout_s=1.0)
    loop.close()


def worker(port: int, role: WorkerRole = "decode") -> Worker:
    return Worker(role=role, host="w", port=port)


def load_of(state: WorkerState) -> tuple[int, float, float, int]:
    return state.open_requests, state.queue_tokens, state.context_tokens, state.running_decodes


# The list


def test_a_worker_is_used_when_it_is_ready_in_the_order_of_the_list(fleet: Fleet) -> None:
    fleet.update([worker(1), worker(2), worker(3, "prefill")])
    assert not any(fleet.ready.values())
    one, two, three = fleet.workers
    for state in (two, three, one):
        fleet.set_ready(state, True)
    assert fleet.ready == {"prefill": [three], "decode": [one, two], "aggregated": []}
    fleet.set_ready(one, False)
    assert fleet.ready["decode"] == [two]


def test_a_worker_that_stays_keeps_what_is_known_of_it(fleet: Fleet) -> None:
    fleet.update([worker(1), worker(2)])
    one, two = fleet.workers
    fleet.set_ready(one, True, {"engine": "a"})
    one.queue_tokens = 7.0
    pool = one.pool
    changed = replace(worker(1), kv_events_endpoint="tcp://w:1")
    fleet.update([worker(2), changed])
    assert list(fleet.workers) == [two, one]
    assert (one.is_ready, one.queue_tokens, one.pool) == (True, 7.0, pool)
    assert one.worker.kv_events_endpoint == "tcp://w:1"
    assert one.worker.facts == {"engine": "a"}
    assert fleet.ready["decode"] == [one]


def test_what_the_configuration_says_of_a_worker_and_what_it_says_of_itself_are_both_known(fleet: Fleet) -> None:
    fleet.update([replace(worker(1), facts={"ports": (1,)})])
    (state,) = fleet.workers
    fleet.set_ready(state, True, {"engine": "a"})
    assert state.worker.facts == {"ports": (1,), "engine": "a"}
    fleet.update([replace(worker(1), facts={"ports": (2,)})])
    assert state.worker.facts == {"ports": (2,), "engine": "a"}


def test_one_address_can_have_two_roles(fleet: Fleet) -> None:
    fleet.update([worker(1, "prefill"), worker(1, "decode")])
    prefill, decode = fleet.workers
    fleet.set_ready(decode, True)
    assert (prefill.is_ready, fleet.ready["decode"], fleet.ready["prefill"]) == (False, [decode], [])


def test_a_worker_that_leaves_gets_nothing_more_and_is_forgotten_when_it_has_nothing_left(fleet: Fleet) -> None:
    fleet.update([worker(1)])
    (state,) = fleet.workers
    fleet.set_ready(state, True)
    fleet.update([])
    assert (fleet.workers, fleet.ready["decode"], state.is_ready) == ((), [], False)
    # A probe that was under way comes too late.
    fleet.set_ready(state, True)
    assert fleet.ready["decode"] == []
    fleet.update([worker(1)])
    assert fleet.workers[0] is not state


def test_a_worker_that_comes_back_with_requests_is_the_one_that_left(fleet: Fleet) -> None:
    fleet.update([worker(1), worker(2)])
    state, _ = fleet.workers
    fleet.set_ready(state, True)
    pool = state.pool
    claim = Claim(None, state, prompt_tokens=100, effective_tokens=60)
    fleet.update([worker(2)])
    fleet.update([worker(2)])
    fleet.update([worker(2), worker(1)])
    assert fleet.workers[1] is state
    # Whether it is well must be asked first, over connections that are not closed.
    assert not state.is_ready
    assert state.pool is not pool
    assert load_of(state) == (1, 60, 100, 0)
    claim.end()
    assert load_of(state) == (0, 0, 0, 0)


# Load


def states(fleet: Fleet) -> tuple[WorkerState, WorkerState]:
    fleet.update([worker(1, "prefill"), worker(2)])
    prefill, decode = fleet.workers
    return prefill, decode


def test_remote_prefill_loads_both_workers_in_turn(fleet: Fleet) -> None:
    prefill, decode = states(fleet)
    claim = Claim(prefill, decode, prompt_tokens=1000, effective_tokens=400)
    assert (load_of(prefill), load_of(decode)) == ((1, 400, 0, 0), (1, 0, 1000, 0))
    claim.prefill_is_done()
    assert (load_of(prefill), load_of(decode)) == ((0, 0, 0, 0), (1, 0, 1000, 0))
    claim.decode_has_begun()
    assert load_of(decode) == (1, 0, 1000, 1)
    claim.end()
    assert load_of(decode) == (0, 0, 0, 0)


def test_local_prefill_loads_the_decode_worker(fleet: Fleet) -> None:
    prefill, decode = states(fleet)
    claim = Claim(None, decode, prompt_tokens=1000, effective_tokens=400)
    assert (load_of(prefill), load_of(decode)) == ((0, 0, 0, 0), (1, 400, 1000, 0))
    claim.decode_has_begun()
    assert load_of(decode) == (1, 0, 1000, 1)
    claim.end()
    assert load_of(decode) == (0, 0, 0, 0)


@settings(deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.booleans(), st.integers(0, 10**6), st.integers(0, 10**6), st.lists(st.integers(0, 2), max_size=6)),
        max_size=20,
    )
)
def test_whatever_happens_all_load_is_given_back(
    requests: list[tuple[bool, int, int, list[int]]],
) -> None:
    loop = asyncio.new_event_loop()
    try:
        prefill, decode = states(Fleet(loop, connect_timeout_s=1.0))
        claims = [
            (Claim(prefill if remote else None, decode, prompt_tokens=prompt, effective_tokens=effective), steps)
            for remote, prompt, effective, steps in requests
        ]
        for claim, steps in claims:
            for step in steps:
                (claim.prefill_is_done, claim.decode_has_begun, claim.end)[step]()
        for claim, _ in claims:
            claim.end()
        assert load_of(prefill) == load_of(decode) == (0, 0, 0, 0)
    finally:
        loop.close()


# Places


class Guest:
    """Waits for its turn; may leave at once when it comes."""

    def __init__(self, admission: Admission, order: list[Guest], *, leaves: bool = False) -> None:
        self._admission = admission
        self._order = order
        self._leaves = leaves

    def on_admission(self) -> None:
        self._order.append(self)
        if self._leaves:
            self._admission.leave()


def test_places_are_given_in_the_order_of_arrival() -> None:
    admission = Admission(places=1, waiting_places=2)
    order: list[Guest] = []
    guests = [Guest(admission, order) for _ in range(3)]
    assert admission.try_enter()
    assert not admission.try_enter()
    assert [admission.try_wait(guest) for guest in guests] == [True, True, False]
    admission.leave()
    assert (order, admission.taken, admission.waiting) == ([guests[0]], 1, 1)
    # Whoever comes now must not overtake the one that waits.
    admission.change(places=2, waiting_places=2)
    assert (order, admission.taken, admission.waiting) == (guests[:2], 2, 0)


def test_a_place_that_is_given_back_at_once_goes_to_the_next_however_many_there_are() -> None:
    admission = Admission(places=1, waiting_places=10_000)
    order: list[Guest] = []
    assert admission.try_enter()
    for number in range(10_000):
        assert admission.try_wait(Guest(admission, order, leaves=number < 9_999))
    admission.leave()
    assert (len(order), admission.taken, admission.waiting) == (10_000, 1, 0)


def test_fewer_places_push_nobody_out() -> None:
    admission = Admission(places=2, waiting_places=1)
    order: list[Guest] = []
    assert admission.try_enter()
    assert admission.try_enter()
    assert admission.try_wait(Guest(admission, order))
    admission.change(places=1, waiting_places=0)
    assert (admission.taken, admission.waiting) == (2, 1)
    admission.leave()
    assert order == []
    admission.leave()
    assert len(order) == 1


@settings(deadline=None)
@given(requests=st.lists(st.booleans(), max_size=500))
def test_repetitions_stay_within_their_share(requests: list[bool]) -> None:
    budget = RetryBudget(share=0.2, most=10.0)
    spent = 0
    for number, fails in enumerate(requests, 1):
        budget.earn()
        if fails and budget.spend():
            spent += 1
        assert spent <= 10 + 0.2 * number + 1e-9
