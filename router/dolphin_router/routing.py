"""Choosing workers and path for one request: pure and synchronous."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple, Protocol

from .adapters.base import EngineAdapter
from .candidates import choose_decode_worker, choose_prefill_worker
from .completion_request import CompletionRequest
from .contract import RoutingTable
from .decision import Action, Decision
from .features import Features, effective_tokens
from .fleet import Fleet, WorkerState
from .load import Load
from .output_length import OutputInputs, OutputLengthModel
from .policies import Policy, policy_from_table

UNKNOWN_OUTPUT_TOKENS = 256.0
"""Expected length of an answer while no table says better."""


class Prompt(Protocol):
    """What is known of a prompt before any worker is chosen."""

    @property
    def tokens(self) -> int:
        """Its length."""

    @property
    def output_inputs(self) -> OutputInputs:
        """What its answer's length is guessed from."""

    def cached_tokens(self, workers: Sequence[WorkerState]) -> Sequence[int]:
        """Return, for each worker, how many of the prompt's leading tokens it holds."""


class ActiveTable(NamedTuple):
    """A table with everything that is made of it, so that one assignment swaps all of it between two requests."""

    table: RoutingTable
    policy: Policy
    output_model: OutputLengthModel | None

    @classmethod
    def from_table(cls, table: RoutingTable) -> ActiveTable:
        """Prepare a table for deciding."""
        output_model = None if table.output_model is None else OutputLengthModel(table.output_model)
        return cls(table, policy_from_table(table), output_model)

    def expected_output_tokens(self, inputs: OutputInputs) -> float:
        """Return the representative length of the class that the answer probably falls into."""
        model = self.output_model
        if model is None:
            return UNKNOWN_OUTPUT_TOKENS
        return model.representative_tokens(model.predict(inputs))


class Route(NamedTuple):
    """Where one request goes."""

    action: Action
    reason: str
    """The policy's, or that of the guard that overruled it."""
    prefill: WorkerState | None
    """For remote prefill."""
    decode: WorkerState
    """The worker that answers: a decode worker, or an aggregated one."""
    features: Features
    load: Load
    """Of the candidate workers, at the decision."""
    decision: Decision | None
    """The policy's; none where no policy was asked."""
    table: RoutingTable | None
    """The one that decided. Another may be in use by the time at which this is read."""


class NoRoute(Exception):
    """No worker can take the request; the message says which is missing."""


class RoutingRules(NamedTuple):
    """What an operator of the router may choose about routing."""

    fallback_action: Action = Action.REMOTE
    """While there is no table."""
    local_without_prefill_worker: bool = True
    """Whether the decode workers prefill while no prefill worker is ready; otherwise the request is refused."""


class Exclusions(NamedTuple):
    """What an earlier attempt at the same request has found out."""

    workers: Collection[str]
    """Names of workers that have failed."""
    forced_local: str | None
    """Why the prompt must be prefilled locally; none when it need not."""


NOTHING_EXCLUDED = Exclusions((), None)


def choose_route(
    request: CompletionRequest,
    prompt: Prompt,
    *,
    fleet: Fleet,
    adapter: EngineAdapter,
    active: ActiveTable | None,
    rules: RoutingRules,
    exclusions: Exclusions = NOTHING_EXCLUDED,
) -> Route:
    """Return where a request goes.

    Raises:
        NoRoute: no worker can take it.
    """
    prefills = _usable(fleet.ready["prefill"], exclusions)
    decodes = _usable(fleet.ready["decode"], exclusions)
    locals_ = decodes if adapter.decode_worker_prefills else _usable(fleet.ready["aggregated"], exclusions)
    if not decodes and not locals_:
        raise NoRoute("no decode worker is ready")
    tokens = prompt.tokens
    # What local prefill would have to compute is judged by the worker that would compute it.
    candidates = locals_ or decodes
    cached = prompt.cached_tokens(prefills + candidates)
    local, local_cached = _choose_decode(tokens, cached[len(prefills) :], candidates)
    prefill, prefill_cached = _choose_prefill(tokens, cached, prefills)
    features = Features(
        tokens,
        effective_tokens(tokens, prefill_cached),
        effective_tokens(tokens, local_cached),
        UNKNOWN_OUTPUT_TOKENS if active is None else active.expected_output_tokens(prompt.output_inputs),
    )
    load = Load(0.0 if prefill is None else prefill.queue_tokens, local.queue_tokens, float(local.running_decodes))
    decision = None if active is None else active.policy.decide(features, load)
    action, reason = _guarded(
        (rules.fallback_action, "no_table") if decision is None else (decision.action, decision.reason),
        forced_local=exclusions.forced_local,
        why_local=adapter.why_local(request),
        missing=None if prefills and decodes else "prefill" if decodes else "decode",
        has_local=bool(locals_),
        rules=rules,
    )
    decode = local
    if action is Action.LOCAL:
        prefill = None
    elif locals_ is not decodes:
        decode = _choose_decode(tokens, prompt.cached_tokens(decodes), decodes)[0]
    return Route(action, reason, prefill, decode, features, load, decision, None if active is None else active.table)


def reroute_decode(route: Route, prompt: Prompt, *, fleet: Fleet, exclusions: Exclusions) -> Route | None:
    """Return the route with another decode worker, for a KV cache that is there already; none when there is no other.

    Nothing is decided anew: the prompt has been computed.
    """
    decodes = _usable(fleet.ready["decode"], exclusions)
    if not decodes:
        return None
    return route._replace(decode=_choose_decode(prompt.tokens, prompt.cached_tokens(decodes), decodes)[0])


def _guarded(
    choice: tuple[Action, str],
    *,
    forced_local: str | None,
    why_local: str | None,
    missing: Literal["prefill", "decode"] | None,
    has_local: bool,
    rules: RoutingRules,
) -> tuple[Action, str]:
    """Return the action that is taken and why, after the policy's choice has met what is possible.

    Args:
        choice: the policy's, or the fallback.
        forced_local: why an earlier attempt leaves no way but local prefill; the reason in any case.
        why_local: why the request itself cannot be prefilled remotely; the reason where it overrules the policy.
        missing: workers that remote prefill needs and that are not ready.
        has_local: whether a worker that both prefills and decodes is ready.
        rules: the operator's.
    """
    action = choice[0]
    if forced_local is not None or why_local is not None:
        if not has_local:
            raise NoRoute("this request needs a worker that both prefills and decodes, and none is ready")
        if forced_local is None and action is Action.LOCAL:
            return choice
        return Action.LOCAL, forced_local or why_local or ""
    if action is Action.LOCAL and not has_local:
        if missing is not None:
            raise NoRoute(f"no {missing} worker is ready")
        return Action.REMOTE, "no_local_prefill"
    if action is Action.REMOTE and missing is not None:
        if not has_local or (missing == "prefill" and not rules.local_without_prefill_worker):
            raise NoRoute(f"no {missing} worker is ready")
        return Action.LOCAL, f"no_{missing}_worker"
    return choice


def _usable(workers: list[WorkerState], exclusions: Exclusions) -> list[WorkerState]:
    if not exclusions.workers:
        return workers
    return [state for state in workers if state.name not in exclusions.workers]


def _choose_prefill(tokens: int, cached: Sequence[int], workers: list[WorkerState]) -> tuple[WorkerState | None, int]:
    if not workers:
        return None, 0
    index = choose_prefill_worker(tokens, cached, [w.queue_tokens for w in workers], len(workers))
    return workers[index], cached[index]


def _choose_decode(tokens: int, cached: Sequence[int], workers: list[WorkerState]) -> tuple[WorkerState, int]:
    index = choose_decode_worker(
        tokens,
        cached,
        [w.queue_tokens for w in workers],
        [w.context_tokens for w in workers],
        len(workers),
    )
    return workers[index], cached[index]
