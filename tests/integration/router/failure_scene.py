"""A client that can misbehave, workers that hand out numbered KV caches, and a view of what the router is left with."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvloop
from raw_client import Answer, Connection, request
from router_under_test import running_router, until
from scripted_worker import Header, Peer, Script, ScriptedWorker, WorkerRequest, scripted_worker

from dolphin_router.process.router import Router
from dolphin_router.request_record import RequestRecord

PROMPT = "The quick brown fox jumps over the lazy dog. " * 20
JSON: Header = (b"content-type", b"application/json")
LIMIT_S = 30.0


def run(play: Coroutine[Any, Any, None]) -> None:
    """Play a scene on uvloop. One that hangs fails, and so does one in which anything is logged as an error or raised
    where nobody handles it."""
    problems: list[object] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info is not None or record.name == "asyncio":
                problems.append(record.getMessage())

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        async with asyncio.timeout(LIMIT_S):
            await play

    listener = Listener(logging.WARNING)
    logging.getLogger().addHandler(listener)
    try:
        uvloop.run(watched())
    finally:
        logging.getLogger().removeHandler(listener)
    assert problems == []


# The client


@asynccontextmanager
async def connected(router: Router) -> AsyncIterator[Connection]:
    """Connect to the router."""
    reader, writer = await asyncio.open_connection("127.0.0.1", router.server.port)
    try:
        yield Connection(reader, writer)
    finally:
        writer.transport.abort()


def completion(
    *,
    stream: bool = False,
    path: bytes = b"/v1/completions",
    headers: Sequence[Header] = (),
    **members: Any,
) -> bytes:
    """Return a whole request."""
    asked = {"prompt": PROMPT} if b"chat" not in path else {"messages": [{"role": "user", "content": PROMPT}]}
    body = json.dumps({"model": "m", "max_tokens": 50, "stream": stream, **asked, **members}).encode()
    return request(b"POST", path, body, headers=headers)


async def complete(router: Router, **asked: Any) -> Answer:
    """Send one request and read its answer."""
    async with connected(router) as client:
        return await client.ask(completion(**asked))


def events(body: bytes) -> list[bytes]:
    """Return the data of a stream's events."""
    return [part.removeprefix(b"data: ") for part in body.split(b"\n\n") if part]


# The workers


class NumberedPrefill:
    """Answers with parameters that have a number of their own."""

    given = 0

    async def __call__(self, request: WorkerRequest, peer: Peer) -> None:
        NumberedPrefill.given += 1
        await peer.answer(prefill_answer(NumberedPrefill.given), headers=[JSON])


def prefill_answer(number: int) -> bytes:
    parameters = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[1, 2]],
        "remote_engine_id": "engine",
        "remote_request_id": f"kv-{number}",
        "remote_prefill_cached_tokens": 0,
    }
    return json.dumps({"choices": [{"text": "x"}], "kv_transfer_params": parameters}).encode()


async def decode_normally(request: WorkerRequest, peer: Peer) -> None:
    """Answer as an engine does: three events, or one object."""
    if request.json().get("stream"):
        await peer.start_stream()
        for _ in range(3):
            await peer.event()
        await peer.end_stream()
    else:
        await peer.answer(b'{"choices": [{"text": "xxx"}]}', headers=[JSON])


async def hang(request: WorkerRequest, peer: Peer) -> None:
    """Never answer."""
    await peer.until_closed()


async def die(request: WorkerRequest, peer: Peer) -> None:
    """Read the request and close."""
    peer.reset()


def answering(status: int, body: bytes = b'{"error": {"message": "no"}}', *headers: Header) -> Script:
    """Return the script of a worker that always answers this."""

    async def script(request: WorkerRequest, peer: Peer) -> None:
        await peer.answer(body, status=status, headers=[JSON, *headers])

    return script


def dying_within(answer: bytes) -> Script:
    """Return the script of a worker that dies after these bytes."""

    async def script(request: WorkerRequest, peer: Peer) -> None:
        await peer.send(answer)
        peer.close()

    return script


def stream_then(then: Script, *, events: int = 2) -> Script:
    """Return the script of a worker that streams some events and then does something else."""

    async def script(request: WorkerRequest, peer: Peer) -> None:
        await peer.start_stream()
        for _ in range(events):
            await peer.event()
        await then(request, peer)

    return script


class Refusing:
    """Stands for an address on which nobody listens."""


@asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """Serve connections on a free port, and have it closed when a test fails, too."""

    async def serve_quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve_quietly, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def kv_of(request: WorkerRequest) -> str | None:
    """Return the name of the KV cache that a decode leg asks for."""
    parameters = json.loads(request.body or b"{}").get("kv_transfer_params") or {}
    if not parameters.get("do_remote_prefill"):
        return None
    return str(parameters.get("remote_request_id") or parameters["transfer_id"])


def is_release(request: WorkerRequest) -> bool:
    """Return whether a decode leg only takes a KV cache to drop it."""
    return kv_of(request) is not None and request.json()["max_tokens"] == 1


# The whole


@dataclass
class Scene:
    """A router between scripted workers."""

    router: Router
    prefills: list[ScriptedWorker]
    decodes: list[ScriptedWorker]
    aggregated: list[ScriptedWorker]
    records: list[RequestRecord] = field(default_factory=list)

    async def complete(self, **asked: Any) -> Answer:
        """Send one request and read its answer."""
        return await complete(self.router, **asked)

    def kv_caches_read(self) -> list[str]:
        """Numbers of the KV caches that decode workers were asked to use, in order."""
        legs = [leg for worker in self.decodes for leg in worker.requests if not is_release(leg)]
        return [number for number in map(kv_of, legs) if number is not None]

    def releases(self) -> list[str | None]:
        """Numbers of the KV caches that decode workers were asked to drop."""
        return [kv_of(leg) for worker in self.decodes for leg in worker.requests if is_release(leg)]

    async def assert_at_rest(self) -> None:
        """All that requests have taken is given back, and no KV cache was used twice."""
        await until(lambda: is_at_rest(self.router), "places and loads are given back")
        used = self.kv_caches_read()
        assert len(used) == len(set(used))
        for worker in (*self.prefills, *self.decodes, *self.aggregated):
            assert not worker.garbage


def is_at_rest(router: Router) -> bool:
    """Return whether nothing that a request takes is held."""
    admission = router.plane.admission
    loads = [
        (state.open_requests, state.queue_tokens, state.context_tokens, state.running_decodes)
        for state in router.fleet.workers
    ]
    return admission.taken == admission.waiting == 0 and all(load == (0, 0, 0, 0) for load in loads)


@asynccontextmanager
async def scene(
    *,
    prefill: Sequence[Script | Refusing] = (),
    decode: Sequence[Script | Refusing] = (decode_normally,),
    aggregated: Sequence[Script | Refusing] = (),
    needs_probes: bool = True,
    **settings: Any,
) -> AsyncIterator[Scene]:
    """Run workers with these scripts and a router before them; without probes they are taken to be ready."""
    async with AsyncExitStack() as stack:
        workers: dict[str, list[ScriptedWorker]] = {}
        urls: dict[str, list[str]] = {}
        unused_ports = iter(range(1, 20))
        roles = {"prefill": prefill, "decode": decode, "aggregated": aggregated}
        for role, scripts in roles.items():
            workers[role], urls[role] = [], []
            for script in scripts:
                if isinstance(script, Refusing):
                    urls[role].append(f"http://127.0.0.1:{next(unused_ports)}")
                    continue
                worker = await stack.enter_async_context(scripted_worker(script))
                workers[role].append(worker)
                urls[role].append(worker.url)
        router = await stack.enter_async_context(
            running_router(
                prefill=urls["prefill"],
                decode=urls["decode"],
                aggregated=urls["aggregated"],
                wait_for_workers=False,
                **settings,
            )
        )
        listening = {url for role in workers.values() for url in (worker.url for worker in role)}
        if needs_probes:
            probed = [state for state in router.fleet.workers if f"http://{state.name}" in listening]
            await until(lambda: all(state.is_ready for state in probed), "the workers are ready")
        else:
            router.prober.close()
        for state in router.fleet.workers:
            # As if it had refused only just now: the router has not noticed yet.
            router.fleet.set_ready(state, True)
        play = Scene(router, workers["prefill"], workers["decode"], workers["aggregated"])
        finished = router.finished

        def keep(record: RequestRecord) -> None:
            play.records.append(record)
            finished(record)

        router.finished = keep  # type: ignore[method-assign]
        yield play
