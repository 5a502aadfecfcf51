"""The data plane: what arrives from clients, and everything that it takes to answer."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Iterator
from time import perf_counter
from typing import Final, Protocol

from .adapters.base import EngineAdapter
from .completion_request import CompletionRequest, RequestError
from .contract import RouterConfig
from .exchange.admission import Admission
from .exchange.exchange import RETRY_AFTER, Exchange
from .exchange.forward import Forward
from .exchange.kv_arrivals import KvArrivals
from .exchange.release import StrandedPhase
from .exchange.retry_budget import RetryBudget
from .fleet import Fleet, WorkerState
from .http.deadlines import Deadlines
from .http.request import Headers, HttpRequest
from .http.response import Response
from .http.server_connection import ClientGone
from .prompt_reader import PromptReader, ReadPrompt
from .request_record import RequestRecord
from .routing import ActiveTable, Exclusions, Route, RoutingRules, choose_route
from .shadow import ShadowComparison

_COMPLETIONS: Final = {b"/v1/chat/completions": True, b"/v1/completions": False}
"""Paths on which a choice is made, and whether each is a chat."""

_FORWARDED_PREFIXES: Final = (b"/v1/", b"/v2/")
_FORWARDED: Final = frozenset(
    {
        b"/classify",
        b"/detokenize",
        b"/embeddings",
        b"/get_model_info",
        b"/invocations",
        b"/model_info",
        b"/ping",
        b"/pooling",
        b"/rerank",
        b"/score",
        b"/tokenize",
        b"/version",
    }
)
_NEVER_FORWARDED: Final = frozenset({b"/v1/load_lora_adapter", b"/v1/unload_lora_adapter"})
"""These change the worker."""


class Observer(Protocol):
    """Hears what is worth counting."""

    def decided(self, seconds: float) -> None:
        """A request's way was chosen; it took this long from the parsed request on."""

    def refused(self, reason: str) -> None:
        """The router answered by itself; ``reason`` is one of few constants."""

    def stranded_lease(self, phase: str) -> None:
        """A KV cache stays on a prefill worker until its lease ends; ``phase`` is a ``StrandedPhase``."""

    def finished(self, record: RequestRecord) -> None:
        """A completion request is over."""


class Suspicion(Protocol):
    """Hears that a worker did not accept a connection."""

    def suspect(self, state: WorkerState) -> None:
        """Take the worker out of use until it answers a probe."""


class DataPlane:
    """Answers every request of a client. Owns nothing that opens a socket by itself."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        fleet: Fleet,
        adapter: EngineAdapter,
        prompts: PromptReader,
        observer: Observer,
        config: RouterConfig,
        rules: RoutingRules,
        deadlines: Deadlines,
        suspicion: Suspicion,
        arrivals: KvArrivals | None = None,
    ) -> None:
        self.loop = loop
        self.fleet = fleet
        self.adapter = adapter
        self.config = config
        """Replaced as a whole when it changes."""
        self.rules = rules
        self.deadlines = deadlines
        self.arrivals = arrivals
        """KV caches that are pushed to decode workers; none where the engine's decode workers fetch them."""
        self.budget = RetryBudget()
        self.admission = Admission(
            places=config.limits.concurrent_requests, waiting_places=config.limits.waiting_requests
        )
        self.active: ActiveTable | None = None
        """Swapped by one assignment, between two requests."""
        self.shadow: ActiveTable | None = None
        """A table that decides without acting."""
        self.shadow_comparison = ShadowComparison()
        self.stranded_leases = 0
        self.is_draining = False
        self._prompts = prompts
        self._observer = observer
        self._suspicion = suspicion
        self._random_numbers: Iterator[tuple[int]] = iter(())

    # From clients

    def handle(self, request: HttpRequest, response: Response) -> ClientGone | None:
        """Begin to answer."""
        path = request.path
        is_chat = _COMPLETIONS.get(path)
        if is_chat is not None and request.method == b"POST":
            return self._complete(request, path, response, is_chat=is_chat)
        if path == b"/health":
            response.answer(200, b"")
        elif path == b"/ready":
            self._answer_ready(response)
        elif is_chat is not None:
            self._refuse(response, "method", 405, "this path takes POST", (b"allow", b"POST"))
        elif path in _FORWARDED or (path.startswith(_FORWARDED_PREFIXES) and path not in _NEVER_FORWARDED):
            return self._forward(request, response)
        else:
            self._refuse(response, "path", 404, "no such path")
        return None

    def _complete(self, request: HttpRequest, path: bytes, response: Response, *, is_chat: bool) -> ClientGone | None:
        try:
            completion = CompletionRequest(request.body, is_chat=is_chat)
        except RequestError as error:
            self._refuse(response, "bad_request", 400, str(error))
            return None
        record = RequestRecord(
            arrived_s=self.loop.time(),
            arrived_unix_s=time.time(),
            path=path.decode(),
            model=completion.fields.model or "",
            streamed=bool(completion.fields.stream),
        )
        started_s = perf_counter()
        prompt = self._prompts.read(completion, record)
        prompt.read_s = perf_counter() - started_s
        exchange = Exchange(self, request, response, completion, prompt, record)
        if self.admission.try_enter():
            exchange.on_admission()
        elif self.admission.try_wait(exchange):
            exchange.wait()
        else:
            self._refuse(response, "overload", 429, "too many requests are waiting", RETRY_AFTER)
            return None
        return exchange

    def _forward(self, request: HttpRequest, response: Response) -> ClientGone | None:
        workers = self.fleet.ready["aggregated"] or self.fleet.ready["decode"]
        if not workers:
            self._refuse(response, "no_worker", 503, "no worker is ready", RETRY_AFTER)
            return None
        if not self.admission.try_enter():
            self._refuse(response, "overload", 429, "too many requests are being worked on", RETRY_AFTER)
            return None
        return Forward(self, request, response, min(workers, key=lambda state: state.open_requests))

    def _answer_ready(self, response: Response) -> None:
        if self.is_draining:
            response.error(503, "the router is stopping")
        elif not self.fleet.ready["decode"] and not self.fleet.ready["aggregated"]:
            response.error(503, "no decode worker is ready")
        else:
            response.answer(200, b"")

    def _refuse(
        self, response: Response, reason: str, status: int, message: str, *headers: tuple[bytes, bytes]
    ) -> None:
        self._observer.refused(reason)
        response.error(status, message, headers)

    # For exchanges

    def refused(self, reason: str) -> None:
        """Count an answer of the router's own."""
        self._observer.refused(reason)

    def route(self, completion: CompletionRequest, prompt: ReadPrompt, exclusions: Exclusions) -> Route:
        """Return where a request goes; ``NoRoute`` when nowhere."""
        started_s = perf_counter()
        route = choose_route(
            completion,
            prompt,
            fleet=self.fleet,
            adapter=self.adapter,
            active=self.active,
            rules=self.rules,
            exclusions=exclusions,
        )
        self._observer.decided(prompt.read_s + perf_counter() - started_s)
        return route

    def routed(self, prompt: ReadPrompt, route: Route) -> None:
        """Take note of where a request goes."""
        self._prompts.sent(prompt, route)

    def finished(self, record: RequestRecord) -> None:
        """Take note of a request that is over."""
        self._prompts.finished(record)
        self._observer.finished(record)

    def suspect(self, state: WorkerState) -> None:
        """Take a worker out of use that accepts no connection."""
        self._suspicion.suspect(state)

    def compare_shadow(self, prompt: ReadPrompt, route: Route) -> None:
        """Ask the shadow table what it would have done with a request that has been sent on its way."""
        shadow = self.shadow
        if shadow is not None:
            action = self.rules.fallback_action if route.decision is None else route.decision.action
            self.shadow_comparison.compare(shadow, prompt, route, action)

    def stranded(self, phase: StrandedPhase) -> None:
        """Count a KV cache that stays on a prefill worker until its lease ends."""
        self.stranded_leases += 1
        self._observer.stranded_lease(phase)

    def new_transfer_id(self) -> int:
        """Return a random number below 2**63."""
        # From the system, since KV caches are named by it and no client may guess another's; many at a time, since a
        # call of the system costs more than all the rest of this.
        number = next(self._random_numbers, None)
        if number is None:
            self._random_numbers = struct.iter_unpack("Q", os.urandom(4096))
            number = next(self._random_numbers)
        return number[0] >> 1

    def explain(self, route: Route) -> Headers:
        """Return the headers that tell a client how its request was decided."""
        headers = [
            (b"x-dolphin-action", route.action.text.encode()),
            (b"x-dolphin-reason", route.reason.encode()),
            (b"x-dolphin-features", ",".join(f"{value:g}" for value in route.features).encode()),
        ]
        if route.decision is not None:
            headers.append((b"x-dolphin-cluster", b"%d" % route.decision.cluster))
        table = route.table
        if table is not None:
            headers.append((b"x-dolphin-table", table.digest.removeprefix("sha256:")[:12].encode()))
            headers.append((b"x-dolphin-split", str(table.split).encode()))
        return headers
