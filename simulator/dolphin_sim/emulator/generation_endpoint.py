"""``/v1/completions`` and ``/v1/chat/completions``: reads a call, sends its answers as they come."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Literal

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dolphin_sim.emulator.answer_format import DONE, AnswerFormat
from dolphin_sim.emulator.call import Call, Run, make_call, request_id_for
from dolphin_sim.emulator.connection import Connection
from dolphin_sim.emulator.errors import ApiError
from dolphin_sim.emulator.received import Received
from dolphin_sim.emulator.request_body import read_body

if TYPE_CHECKING:
    from dolphin_sim.emulator.worker import EmulatedWorker

_MID_STREAM = ("die-mid-stream", "stall-mid-stream")
_STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8")]


class GenerationEndpoint:
    """An ASGI application for one of the two paths."""

    def __init__(self, worker: EmulatedWorker, kind: Literal["chat", "completion"]) -> None:
        self._worker = worker
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        received: Received = scope["received"]
        body = await _whole_body(receive)
        if body is None:
            return
        exchange = _Exchange(self._worker, scope, receive, send)
        if not await exchange.is_spoilt():
            await exchange.answer(self._call(body, received))

    def _call(self, content: bytes, received: Received) -> Call:
        worker = self._worker
        body = read_body(content, self._kind)
        request_id = request_id_for(body, received.headers)
        try:
            return make_call(
                body,
                received.headers,
                content=content,
                request_id=request_id,
                model=worker.options.model,
                longest_tokens=worker.options.longest_tokens,
            )
        except ApiError:
            worker.engine.tell_abandoned(body, request_id)
            raise


class _Exchange:
    """One request and its answer."""

    def __init__(self, worker: EmulatedWorker, scope: Scope, receive: Receive, send: Send) -> None:
        self._worker = worker
        self._faults = worker.faults
        self._scope = scope
        self._connection: Connection = scope["connection"]
        self._received: Received = scope["received"]
        self._receive = receive
        self._send = send
        self._run: Run | None = None
        self._chunks = 0
        self._has_left = False

    async def is_spoilt(self) -> bool:
        """Do what a fault says in place of an answer; tell if there was one."""
        fault = self._faults.take("status")
        if fault is not None:
            status = int(fault.value)
            headers = {"retry-after": "1"} if status in (429, 503) else None
            await self._respond(ApiError(status, f"status {status} on demand").response(headers))
            return True
        if self._faults.take("hang"):
            await self._wait_for_leaving()
            return True
        return False

    async def answer(self, call: Call) -> None:
        """Run the call, and stop it when the client leaves.

        Raises:
            ApiError: the engine refuses the call.
        """
        watch = asyncio.create_task(self._watch())
        try:
            if self._worker.engine.connector.has_preparation(call):
                prepared = await self._prepare(call, watch)
                if prepared is None:
                    return
                call = prepared
            run = self._worker.engine.start_run(call)
            self._run = run
            if call.body.stream:
                await self._stream(run)
            else:
                await self._whole(run)
        finally:
            watch.cancel()
            if self._run is not None:
                self._worker.engine.abort(self._run)

    async def _prepare(self, call: Call, watch: asyncio.Task[None]) -> Call | None:
        """Return the call that the engine gets; None when the client leaves first."""
        preparation = asyncio.create_task(self._worker.engine.connector.prepare(call))
        try:
            await asyncio.wait({preparation, watch}, return_when=asyncio.FIRST_COMPLETED)
            return None if self._has_left else await preparation
        finally:
            preparation.cancel()

    async def _stream(self, run: Run) -> None:
        written = AnswerFormat(run, self._worker.engine.connector)
        # As in vLLM, the head goes out before the first token is there.
        await self._send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        sent = [0] * len(run.choices)
        has_begun = False
        while not self._has_left:
            await run.changed.wait()
            run.changed.clear()
            if run.failure is not None:
                failure = ApiError(500, "Internal server error").document()
                await self._send_chunk(b"data: " + msgspec.json.encode(failure) + b"\n\n")
                break
            for place, choice in enumerate(run.choices):
                stop = choice.generated_tokens
                if stop == sent[place]:
                    continue
                if not has_begun:
                    has_begun = True
                    for chunk in written.roles():
                        await self._send_chunk(chunk)
                # A client that reads slowly gets what has come meanwhile in one chunk, as from vLLM.
                is_last = choice.is_over
                await self._send_chunk(written.tokens(choice, sent[place], stop, is_last=is_last))
                sent[place] = stop
            if run.is_over:
                await self._worker.engine.connector.settled(run)
                if written.includes_usage:
                    await self._send_chunk(written.usage())
                break
        if not self._has_left:
            await self._send({"type": "http.response.body", "body": DONE, "more_body": False})

    async def _whole(self, run: Run) -> None:
        while not (run.is_over or self._has_left):
            await run.changed.wait()
            run.changed.clear()
        if self._has_left:
            return
        if run.failure is not None:
            await self._respond(ApiError(500, "Internal server error").response())
            return
        await self._worker.engine.connector.settled(run)
        for kind in _MID_STREAM:
            if await self._breaks_off(kind):
                return
        body = AnswerFormat(run, self._worker.engine.connector).whole()
        await self._respond(Response(body, media_type="application/json"))

    async def _respond(self, response: Response) -> None:
        await response(self._scope, self._receive, self._send)

    async def _send_chunk(self, chunk: bytes) -> None:
        if self._has_left:
            return
        for kind in _MID_STREAM:
            if self._chunks >= self._faults.value(kind, math.inf) and await self._breaks_off(kind):
                return
        self._chunks += 1
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def _breaks_off(self, kind: str) -> bool:
        """Do what a fault says in the middle of an answer; tell if there was one."""
        if self._faults.take(kind) is None:
            return False
        self._received.finish("fault")
        if kind == "die-mid-stream":
            self._connection.reset()
        while not self._has_left:
            assert self._run is not None
            self._run.changed.clear()
            await self._run.changed.wait()
        return True

    async def _watch(self) -> None:
        await self._wait_for_leaving()
        self._has_left = True
        if self._run is not None:
            self._worker.engine.abort(self._run)
            self._run.changed.set()

    async def _wait_for_leaving(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def _whole_body(receive: Receive) -> bytes | None:
    """Return a request's body; None when the client leaves before it is there."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message["body"])
        if not message["more_body"]:
            return b"".join(parts)
