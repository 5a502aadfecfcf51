"""``/v1/completions`` and ``/v1/chat/completions``: reads a call, sends its answers as they come."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

from starlette.types import Receive, Scope, Send

from dolphin_sim.emulator.answer_format import DONE, AnswerFormat
from dolphin_sim.emulator.call import Call, Run, make_call, request_id_for
from dolphin_sim.emulator.connection import Connection
from dolphin_sim.emulator.errors import ApiError
from dolphin_sim.emulator.received import Received
from dolphin_sim.emulator.request_body import read_body
from dolphin_sim.emulator.responses import read_whole_body, send_body, send_error

if TYPE_CHECKING:
    from dolphin_sim.emulator.worker import EmulatedWorker

_STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8")]


class GenerationEndpoint:
    """An ASGI application for one of the two paths."""

    def __init__(self, worker: EmulatedWorker, kind: Literal["chat", "completion"]) -> None:
        self._worker = worker
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        received: Received = scope["received"]
        body = await read_whole_body(receive)
        if body is None:
            received.finish("left")
            return
        received.body = body
        exchange = _Exchange(self._worker, scope["connection"], received, receive, send)
        if await exchange.is_spoilt():
            return
        try:
            call = await self._read(received)
        except ApiError as error:
            await send_error(send, received, error)
            return
        await exchange.answer(call)

    async def _read(self, received: Received) -> Call:
        worker = self._worker
        body = read_body(received.body, self._kind)
        await worker.before_call(body, received)
        request_id = request_id_for(body, received.headers)
        try:
            return make_call(
                body,
                received.headers,
                request_id=request_id,
                model=worker.options.model,
                longest_tokens=worker.options.longest_tokens,
            )
        except ApiError:
            worker.engine.tell_abandoned(body, request_id)
            raise


class _Exchange:
    """One request and its answer."""

    def __init__(
        self, worker: EmulatedWorker, connection: Connection, received: Received, receive: Receive, send: Send
    ) -> None:
        self._worker = worker
        self._faults = worker.faults
        self._connection = connection
        self._received = received
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
            headers = [(b"retry-after", b"1")] if status in (429, 503) else []
            error = ApiError(status, f"status {status} on demand")
            await send_error(self._send, self._received, error, headers)
            return True
        if self._faults.take("hang"):
            await self._wait_for_leaving()
            return True
        return False

    async def answer(self, call: Call) -> None:
        """Run the call, and stop it when the client leaves."""
        try:
            run = self._worker.engine.start_run(call)
        except ApiError as error:
            await send_error(self._send, self._received, error)
            return
        self._run = run
        watch = asyncio.create_task(self._watch())
        try:
            if call.body.stream:
                await self._stream(run)
            else:
                await self._whole(run)
        finally:
            watch.cancel()
            self._worker.engine.abort(run)
            self._received.finish("left" if self._has_left else "answered")

    async def _stream(self, run: Run) -> None:
        written = AnswerFormat(run, self._worker.options.model)
        self._received.status = 200
        # As in vLLM, the head goes out before the first token is there.
        await self._send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        sent = [0] * len(run.choices)
        has_begun = False
        while not self._has_left:
            await run.changed.wait()
            run.changed.clear()
            if run.failure is not None:
                await self._send_chunk(_event(ApiError(500, "Internal server error").body()))
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
                await self._worker.engine.settled(run)
                if written.includes_usage or self._worker.engine.connector.always_sends_usage:
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
            await send_error(self._send, self._received, ApiError(500, "Internal server error"))
            return
        await self._worker.engine.settled(run)
        if await self._breaks_off("die-mid-stream", at_chunk=None):
            return
        if await self._breaks_off("stall-mid-stream", at_chunk=None):
            return
        body = AnswerFormat(run, self._worker.options.model).whole()
        self._received.status = 200
        await send_body(self._send, 200, body)

    async def _send_chunk(self, chunk: bytes) -> None:
        if self._has_left:
            return
        for kind in ("die-mid-stream", "stall-mid-stream"):
            if await self._breaks_off(kind, at_chunk=self._chunks):
                return
        self._chunks += 1
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def _breaks_off(self, kind: str, *, at_chunk: int | None) -> bool:
        if not self._faults.is_set(kind) or (at_chunk is not None and at_chunk < self._faults.value(kind, 0.0)):
            return False
        self._faults.take(kind)
        self._received.finish("fault")
        if kind == "die-mid-stream":
            self._connection.reset()
        while not self._has_left:
            assert self._run is not None
            self._run.changed.clear()
            await self._run.changed.wait()
        return True

    async def _watch(self) -> None:
        assert self._run is not None
        await self._wait_for_leaving()
        self._has_left = True
        self._worker.engine.abort(self._run)
        self._run.changed.set()

    async def _wait_for_leaving(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _event(document: bytes) -> bytes:
    return b"data: " + document + b"\n\n"
