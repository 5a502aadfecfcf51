"""The workers as they are: which are ready, and what the router has given them to do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from .http.upstream import ConnectionPool
from .worker import Worker, WorkerRole


class WorkerState:
    """One worker: connections, readiness and load. Load is what this router has sent and not seen end."""

    __slots__ = (
        "context_tokens",
        "host_header",
        "is_ready",
        "name",
        "open_requests",
        "pool",
        "queue_tokens",
        "running_decodes",
        "worker",
    )

    def __init__(self, worker: Worker, pool: ConnectionPool) -> None:
        self.worker = worker
        self.pool = pool
        self.name = worker.name
        self.host_header = self.name.encode()
        self.is_ready = False
        self.queue_tokens = 0.0
        """Uncached prompt tokens that it was given to compute and has not answered for."""
        self.context_tokens = 0.0
        """Prompt tokens of the requests that it decodes or is promised."""
        self.running_decodes = 0
        """Requests that it is decoding."""
        self.open_requests = 0


class Fleet:
    """All workers. A worker that leaves the list gets no new requests; those that it has go on."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, connect_timeout_s: float) -> None:
        self._loop = loop
        self._connect_timeout_s = connect_timeout_s
        self._states: dict[tuple[WorkerRole, str], WorkerState] = {}
        # Workers that have left the list and still have requests: should one come back, its load is known.
        self._leaving: dict[tuple[WorkerRole, str], WorkerState] = {}
        self.ready: dict[WorkerRole, list[WorkerState]] = {"prefill": [], "decode": [], "aggregated": []}
        """By role, in the order of the list."""

    @property
    def workers(self) -> Sequence[WorkerState]:
        """All workers in the order of the list."""
        return tuple(self._states.values())

    def update(self, workers: Iterable[Worker]) -> None:
        """Take over a new list. A worker that stays keeps its connections, its load and its readiness; one that comes
        back while requests are still with it keeps its load."""
        before = self._states
        known = {**self._leaving, **before}
        self._states = {}
        for worker in workers:
            key = (worker.role, worker.name)
            state = known.pop(key, None)
            if state is None:
                state = WorkerState(worker, self._new_pool(worker))
            else:
                if key not in before:
                    state.pool = self._new_pool(worker)
                state.worker = replace(worker, facts={**state.worker.facts, **worker.facts})
            self._states[key] = state
        for key, state in known.items():
            if key in before:
                state.is_ready = False
                state.pool.close()
        self._leaving = {key: state for key, state in known.items() if state.open_requests}
        self._sort()

    def set_ready(self, state: WorkerState, ready: bool, facts: Mapping[str, object] | None = None) -> None:
        """Say whether a worker may get requests, and what it told of itself."""
        if facts is not None:
            state.worker = replace(state.worker, facts={**state.worker.facts, **facts})
        if self._states.get((state.worker.role, state.worker.name)) is not state:
            return
        if state.is_ready != ready:
            state.is_ready = ready
            self._sort()

    def close(self) -> None:
        """Close all idle connections."""
        for state in self._states.values():
            state.pool.close()

    def _new_pool(self, worker: Worker) -> ConnectionPool:
        return ConnectionPool(worker.host, worker.port, loop=self._loop, connect_timeout_s=self._connect_timeout_s)

    def _sort(self) -> None:
        for role in self.ready:
            self.ready[role] = [s for s in self._states.values() if s.worker.role == role and s.is_ready]


class Claim:
    """What one request takes of its workers' time: entered when it is sent, taken back as it goes on."""

    __slots__ = ("_context_tokens", "_decode", "_is_over", "_is_running", "_prefill", "_prefill_tokens")

    def __init__(
        self, prefill: WorkerState | None, decode: WorkerState, *, prompt_tokens: float, effective_tokens: float
    ) -> None:
        """Enter a request.

        Args:
            prefill: the worker that computes the prompt before the decode worker begins; none for local prefill.
            decode: the worker that answers.
            prompt_tokens: length of the prompt.
            effective_tokens: what must be computed of it, wherever that is done.
        """
        self._prefill = prefill
        self._decode = decode
        self._prefill_tokens = effective_tokens
        self._context_tokens = prompt_tokens
        self._is_running = False
        self._is_over = False
        if prefill is not None:
            prefill.open_requests += 1
            prefill.queue_tokens += effective_tokens
        else:
            decode.queue_tokens += effective_tokens
        decode.open_requests += 1
        decode.context_tokens += prompt_tokens

    def prefill_is_done(self) -> None:
        """The prompt has been computed."""
        worker = self._prefill or self._decode
        worker.queue_tokens = max(0.0, worker.queue_tokens - self._prefill_tokens)
        self._prefill_tokens = 0.0
        if self._prefill is not None:
            self._prefill.open_requests -= 1
            self._prefill = None

    def decode_has_begun(self) -> None:
        """The first token has come."""
        self.prefill_is_done()
        if not (self._is_running or self._is_over):
            self._is_running = True
            self._decode.running_decodes += 1

    def end(self) -> None:
        """The request has left its workers. Nothing happens a second time."""
        if self._is_over:
            return
        self._is_over = True
        self.prefill_is_done()
        if self._is_running:
            self._is_running = False
            self._decode.running_decodes -= 1
        self._decode.open_requests -= 1
        self._decode.context_tokens = max(0.0, self._decode.context_tokens - self._context_tokens)
        self._context_tokens = 0.0
