"""Where one request goes: candidates, the policy's choice, guards, and what earlier attempts have found out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolphin_router.adapters import ADAPTERS
from dolphin_router.completion_request import CompletionRequest
from dolphin_router.contract import RoutingTable
from dolphin_router.decision import Action, Decision
from dolphin_router.features import Features
from dolphin_router.fleet import Fleet, WorkerState
from dolphin_router.load import Load
from dolphin_router.output_length import OutputInputs
from dolphin_router.routing import (
    NOTHING_EXCLUDED,
    UNKNOWN_OUTPUT_TOKENS,
    ActiveTable,
    Exclusions,
    NoRoute,
    Route,
    RoutingRules,
    choose_route,
    reroute_decode,
)
from dolphin_router.shadow import ShadowComparison
from dolphin_router.worker import Worker, WorkerRole

TableBuilder = Callable[..., RoutingTable]
ROLES: tuple[WorkerRole, ...] = ("prefill", "decode", "aggregated")


class Prompt(NamedTuple):
    """A prompt of which workers hold what a test says."""

    tokens: int = 1000
    cached: Mapping[str, int] = MappingProxyType({})
    output_inputs: OutputInputs = OutputInputs(1000, 100, 1, False, False, None)

    def cached_tokens(self, workers: Sequence[WorkerState]) -> list[int]:
        return [self.cached.get(worker.name, 0) for worker in workers]


class Always:
    """A policy that has made up its mind, and remembers what it was asked."""

    def __init__(self, action: Action) -> None:
        self._action = action
        self.asked: list[tuple[Features, Load]] = []

    def decide(self, features: Features, load: Load) -> Decision:
        self.asked.append((features, load))
        return Decision(self._action, 3, "cluster", 0.5)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class Pools:
    """A fleet without sockets. Workers are named after their port."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, prefill: int = 0, decode: int = 0, aggregated: int = 0
    ) -> None:
        self.fleet = Fleet(loop, connect_timeout_s=1.0)
        counts = {"prefill": prefill, "decode": decode, "aggregated": aggregated}
        first_ports = {"prefill": 100, "decode": 200, "aggregated": 300}
        self.fleet.update(
            Worker(role=role, host="w", port=first_ports[role] + number)
            for role in ROLES
            for number in range(counts[role])
        )
        for state in self.fleet.workers:
            self.fleet.set_ready(state, True)

    def __getitem__(self, port: int) -> WorkerState:
        (found,) = [state for state in self.fleet.workers if state.worker.port == port]
        return found

    def route(
        self,
        *,
        engine: str = "vllm-nixl",
        decides: Action | None = None,
        policy: Any = None,
        table: RoutingTable | None = None,
        known: Prompt | None = None,
        rules: RoutingRules | None = None,
        exclusions: Exclusions = NOTHING_EXCLUDED,
        **members: Any,
    ) -> Route:
        body = msgspec.json.encode({"model": "m", "prompt": "hello"} | members)
        active = None
        if table is not None:
            active = ActiveTable.from_table(table)
            if decides is not None or policy is not None:
                active = active._replace(policy=policy or Always(decides or Action.LOCAL))
        return choose_route(
            CompletionRequest(body, is_chat=False),
            known or Prompt(),
            fleet=self.fleet,
            adapter=ADAPTERS[engine],
            active=active,
            rules=rules or RoutingRules(),
            exclusions=exclusions,
        )


def ports(route: Route) -> tuple[int | None, int]:
    return None if route.prefill is None else route.prefill.worker.port, route.decode.worker.port


# The choice and the guards


@pytest.mark.parametrize("action", list(Action))
def test_without_a_table_the_fallback_decides(loop: asyncio.AbstractEventLoop, action: Action) -> None:
    route = Pools(loop, prefill=1, decode=1).route(rules=RoutingRules(fallback_action=action))
    assert (route.action, route.reason, route.decision, route.table) == (action, "no_table", None, None)
    assert (route.prefill is None) is (action is Action.LOCAL)
    assert route.features.output_tokens == UNKNOWN_OUTPUT_TOKENS


@pytest.mark.parametrize("action", list(Action))
def test_the_table_decides(loop: asyncio.AbstractEventLoop, build_table: TableBuilder, action: Action) -> None:
    table = build_table()
    route = Pools(loop, prefill=1, decode=1).route(table=table, decides=action)
    assert (route.action, route.reason, route.table) == (action, "cluster", table)
    assert route.decision == Decision(action, 3, "cluster", 0.5)


@pytest.mark.parametrize(
    ("members", "reason"),
    [({"echo": True}, "echo"), ({"prompt_logprobs": 1}, "prompt_logprobs"), ({"prompt": ["a", "b"]}, "batch")],
)
def test_requests_that_must_be_computed_where_they_are_answered(
    loop: asyncio.AbstractEventLoop, build_table: TableBuilder, members: dict[str, Any], reason: str
) -> None:
    pools = Pools(loop, prefill=1, decode=1)
    overruled = pools.route(table=build_table(), decides=Action.REMOTE, **members)
    assert (overruled.action, overruled.reason, overruled.prefill) == (Action.LOCAL, reason, None)
    # What was decided stays to be seen, also where it was not done.
    assert overruled.decision is not None
    assert overruled.decision.action is Action.REMOTE
    agreed = pools.route(table=build_table(), decides=Action.LOCAL, **members)
    assert (agreed.action, agreed.reason) == (Action.LOCAL, "cluster")


def test_what_an_earlier_attempt_has_found_out_is_the_reason_in_any_case(
    loop: asyncio.AbstractEventLoop, build_table: TableBuilder
) -> None:
    pools = Pools(loop, prefill=1, decode=1)
    for action in Action:
        exclusions = Exclusions((), "prefill_failed")
        route = pools.route(table=build_table(), decides=action, exclusions=exclusions, echo=True)
        assert (route.action, route.reason, route.prefill) == (Action.LOCAL, "prefill_failed", None)


def test_no_prefill_worker(loop: asyncio.AbstractEventLoop, build_table: TableBuilder) -> None:
    pools = Pools(loop, decode=1)
    route = pools.route(table=build_table(), decides=Action.REMOTE)
    assert (route.action, route.reason, ports(route)) == (Action.LOCAL, "no_prefill_worker", (None, 200))
    strict = RoutingRules(local_without_prefill_worker=False)
    with pytest.raises(NoRoute, match="no prefill worker is ready"):
        pools.route(table=build_table(), decides=Action.REMOTE, rules=strict)
    assert pools.route(table=build_table(), decides=Action.LOCAL, rules=strict).reason == "cluster"


@pytest.mark.parametrize("engine", sorted(ADAPTERS))
def test_no_worker_that_answers(loop: asyncio.AbstractEventLoop, engine: str) -> None:
    with pytest.raises(NoRoute, match="no decode worker is ready"):
        Pools(loop, prefill=1).route(engine=engine)


def test_an_engine_whose_decode_workers_cannot_prefill(
    loop: asyncio.AbstractEventLoop, build_table: TableBuilder
) -> None:
    table = build_table()
    apart = Pools(loop, prefill=1, decode=1)
    route = apart.route(engine="sglang", table=table, decides=Action.LOCAL)
    assert (route.action, route.reason, ports(route)) == (Action.REMOTE, "no_local_prefill", (100, 200))
    with pytest.raises(NoRoute, match="needs a worker that both prefills and decodes"):
        apart.route(engine="sglang", echo=True)
    with pytest.raises(NoRoute, match="no prefill worker is ready"):
        Pools(loop, decode=1).route(engine="sglang", table=table, decides=Action.REMOTE)
    with pytest.raises(NoRoute, match="no prefill worker is ready"):
        Pools(loop, decode=1).route(engine="sglang", table=table, decides=Action.LOCAL)
    both = Pools(loop, prefill=1, decode=1, aggregated=1)
    assert ports(both.route(engine="sglang", table=table, decides=Action.LOCAL)) == (None, 300)
    assert ports(both.route(engine="sglang", table=table, decides=Action.REMOTE)) == (100, 200)
    assert ports(both.route(engine="sglang", echo=True)) == (None, 300)


def test_only_aggregated_workers(loop: asyncio.AbstractEventLoop, build_table: TableBuilder) -> None:
    pools = Pools(loop, prefill=1, aggregated=1)
    strict = RoutingRules(local_without_prefill_worker=False)
    route = pools.route(engine="sglang", table=build_table(), decides=Action.REMOTE, rules=strict)
    assert (route.action, route.reason, ports(route)) == (Action.LOCAL, "no_decode_worker", (None, 300))


# Candidates


def test_the_policy_sees_the_candidates_as_they_are(loop: asyncio.AbstractEventLoop, build_table: TableBuilder) -> None:
    pools = Pools(loop, prefill=2, decode=2)
    pools[100].queue_tokens = 5000.0
    pools[101].queue_tokens = 300.0
    pools[200].context_tokens = 9000.0
    pools[201].queue_tokens, pools[201].running_decodes = 70.0, 4
    policy = Always(Action.REMOTE)
    table = build_table()
    route = pools.route(table=table, policy=policy, known=Prompt(1000, {"w:101": 600, "w:201": 250}))
    assert ports(route) == (101, 201)
    ((features, load),) = policy.asked
    assert features == route.features
    assert features[:3] == (1000, 400, 750)
    assert features.output_tokens == ActiveTable.from_table(table).expected_output_tokens(Prompt().output_inputs)
    assert load == route.load == Load(300.0, 70.0, 4.0)


def test_local_prefill_elsewhere_is_judged_by_the_worker_that_would_compute_it(loop: asyncio.AbstractEventLoop) -> None:
    pools = Pools(loop, prefill=1, decode=1, aggregated=1)
    cached = Prompt(1000, {"w:200": 900, "w:300": 100})
    assert pools.route(engine="sglang", known=cached).features.decode_effective_tokens == 900
    assert pools.route(known=cached).features.decode_effective_tokens == 100


def test_workers_that_have_failed_are_left_out(loop: asyncio.AbstractEventLoop) -> None:
    pools = Pools(loop, prefill=2, decode=2)
    assert ports(pools.route()) == (100, 200)
    assert ports(pools.route(exclusions=Exclusions({"w:100", "w:200"}, None))) == (101, 201)
    route = pools.route(exclusions=Exclusions({"w:100", "w:101"}, None))
    assert (ports(route), route.reason) == ((None, 200), "no_prefill_worker")
    with pytest.raises(NoRoute, match="no decode worker"):
        pools.route(exclusions=Exclusions({"w:200", "w:201"}, None))


def test_a_kv_cache_that_is_there_needs_another_decode_worker_only(loop: asyncio.AbstractEventLoop) -> None:
    pools = Pools(loop, prefill=1, decode=3)
    route = pools.route()
    pools[201].context_tokens = 1.0
    # Nothing else counts any more: not that the prefill worker is gone, for instance.
    pools.fleet.set_ready(pools[100], False)
    again = reroute_decode(route, Prompt(), fleet=pools.fleet, exclusions=Exclusions({"w:200"}, None))
    assert again == route._replace(decode=pools[202])
    exclusions = Exclusions({"w:200", "w:201", "w:202"}, None)
    assert reroute_decode(route, Prompt(), fleet=pools.fleet, exclusions=exclusions) is None


@settings(deadline=None, max_examples=200)
@given(
    counts=st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)),
    engine=st.sampled_from(sorted(ADAPTERS)),
    fallback=st.sampled_from(list(Action)),
    lenient=st.booleans(),
    excluded=st.sets(st.sampled_from(["w:100", "w:101", "w:200", "w:201", "w:300", "w:301"])),
    forced=st.sampled_from([None, "prefill_failed"]),
    echo=st.booleans(),
)
def test_every_route_can_be_gone(
    counts: tuple[int, int, int],
    engine: str,
    fallback: Action,
    lenient: bool,
    excluded: set[str],
    forced: str | None,
    echo: bool,
) -> None:
    loop = asyncio.new_event_loop()
    try:
        pools = Pools(loop, prefill=counts[0], decode=counts[1], aggregated=counts[2])
        rules = RoutingRules(fallback, lenient)
        usable = {role: [w for w in pools.fleet.ready[role] if w.name not in excluded] for role in ROLES}
        can_prefill = usable["decode" if ADAPTERS[engine].decode_worker_prefills else "aggregated"]
        try:
            route = pools.route(engine=engine, rules=rules, exclusions=Exclusions(excluded, forced), echo=echo)
        except NoRoute:
            must_be_local = forced is not None or ADAPTERS[engine].why_local(_request(echo)) is not None
            can_be_remote = bool(usable["prefill"] and usable["decode"]) and not must_be_local
            can_be_local = bool(can_prefill) and (must_be_local or lenient or fallback is Action.LOCAL)
            assert not can_be_remote
            assert not can_be_local
        else:
            if route.action is Action.REMOTE:
                assert route.prefill in usable["prefill"]
                assert route.decode in usable["decode"]
            else:
                assert route.prefill is None
                assert route.decode in can_prefill
            assert route.reason
    finally:
        loop.close()


def _request(echo: bool) -> CompletionRequest:
    return CompletionRequest(msgspec.json.encode({"model": "m", "prompt": "hello", "echo": echo}), is_chat=False)


# The shadow


def test_a_shadow_is_compared_by_its_own_clusters(loop: asyncio.AbstractEventLoop, build_table: TableBuilder) -> None:
    pools = Pools(loop, prefill=1, decode=1)
    route = pools.route(table=build_table(), decides=Action.REMOTE)
    shadow = ActiveTable.from_table(build_table(clusters=2))
    comparison = ShadowComparison()
    for action in (Action.REMOTE, Action.LOCAL, Action.LOCAL):
        comparison.compare(shadow._replace(policy=Always(Action.LOCAL)), Prompt(), route, action)
    assert (comparison.agreements, comparison.disagreements) == ({3: 2}, {3: 1})
    assert comparison.digest == shadow.table.digest
    # Clusters of another table are others; what is counted by action goes on.
    other = ActiveTable.from_table(build_table(clusters=3))
    comparison.compare(other._replace(policy=Always(Action.REMOTE)), Prompt(), route, Action.REMOTE)
    assert (comparison.agreements, comparison.disagreements) == ({3: 1}, {})
    assert comparison.decisions == {
        (Action.REMOTE, Action.LOCAL): 1,
        (Action.LOCAL, Action.LOCAL): 2,
        (Action.REMOTE, Action.REMOTE): 1,
    }


def test_a_shadow_sees_the_same_request_and_guesses_its_answer_by_itself(
    loop: asyncio.AbstractEventLoop, build_table: TableBuilder
) -> None:
    pools = Pools(loop, prefill=1, decode=1)
    pools[100].queue_tokens = 50.0
    route = pools.route()
    policy = Always(Action.LOCAL)
    shadow = ActiveTable.from_table(build_table())._replace(policy=policy)
    ShadowComparison().compare(shadow, Prompt(), route, Action.LOCAL)
    ((features, load),) = policy.asked
    assert features[:3] == route.features[:3]
    assert features.output_tokens == shadow.expected_output_tokens(Prompt().output_inputs) != UNKNOWN_OUTPUT_TOKENS
    assert load == route.load
