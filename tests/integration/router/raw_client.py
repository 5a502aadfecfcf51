"""A client over raw sockets, and a stage on which scenes with a router and scripted workers are played."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvloop
from router_under_test import running_router
from scripted_worker import Header, Script, ScriptedWorker, answer_empty, scripted_worker

from dolphin_router.process.router import Router

LIMIT_S = 10.0
"""Nothing in these tests takes longer, unless the router does not do what it should."""

BODY = json.dumps({"model": "m", "prompt": "Hello", "max_tokens": 4}).encode()
STREAM_BODY = json.dumps({"model": "m", "prompt": "Hello", "max_tokens": 4, "stream": True}).encode()

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}


def completion(body: bytes = BODY, *, headers: Iterable[Header] = (), version: bytes = b"1.1") -> bytes:
    """Return a request for a completion, its body with a length."""
    return request(b"POST", b"/v1/completions", body, headers=headers, version=version)


def request(
    method: bytes, target: bytes, body: bytes | None = None, *, headers: Iterable[Header] = (), version: bytes = b"1.1"
) -> bytes:
    """Return a request."""
    lines = [b"%b %b HTTP/%b" % (method, target, version), b"Host: router"]
    lines.extend(b"%b: %b" % header for header in headers)
    if body is not None:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")


def chunked(pieces: Iterable[bytes], *, extension: bytes = b"", trailers: bytes = b"") -> bytes:
    """Return a chunked body."""
    chunks = [b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces if piece]
    return b"".join(chunks) + b"0\r\n" + trailers + b"\r\n"


@dataclass(frozen=True)
class Answer:
    """One answer."""

    status: int
    headers: list[Header]
    body: bytes
    raw_head: bytes

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of all headers with this name, given in lower case."""
        return [value for key, value in self.headers if key == name]

    @property
    def is_chunked(self) -> bool:
        return self.values(b"transfer-encoding") == [b"chunked"]

    def json(self) -> Any:
        return json.loads(self.body)


class CutAnswer(Exception):
    """The connection ended within an answer."""


class Connection:
    """The client's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *pieces: bytes) -> None:
        """Send pieces one by one, each in a packet of its own as far as the loop can do that."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)

    async def ask(self, data: bytes, *, has_body: bool = True) -> Answer:
        """Send a request and return the answer to it."""
        await self.send(data)
        return await self.answer(has_body=has_body)

    async def answer(self, *, has_body: bool = True) -> Answer:
        """Read one answer."""
        async with asyncio.timeout(LIMIT_S):
            head = await self.head()
            if not has_body or head.status in (204, 304) or head.status < 200:
                return head
            return Answer(head.status, head.headers, await self._body(head), head.raw_head)

    async def head(self) -> Answer:
        """Read the head of an answer."""
        try:
            async with asyncio.timeout(LIMIT_S):
                raw = await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            raise CutAnswer(error.partial) from None
        first, *lines = raw[:-4].split(b"\r\n")
        version, status, _ = first.split(b" ", 2)
        assert version == b"HTTP/1.1"
        headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
        return Answer(int(status), headers, b"", raw)

    async def chunk(self) -> bytes:
        """Read one chunk of a body; empty at its end."""
        try:
            async with asyncio.timeout(LIMIT_S):
                size = int(await self.reader.readuntil(b"\r\n"), 16)
                data = await self.reader.readexactly(size + 2)
        except asyncio.IncompleteReadError as error:
            raise CutAnswer(error.partial) from None
        assert data.endswith(b"\r\n")
        return data[:-2]

    async def chunks(self) -> bytes:
        """Read the rest of a chunked body."""
        pieces = []
        while piece := await self.chunk():
            pieces.append(piece)
        return b"".join(pieces)

    async def rest(self) -> bytes:
        """Read until the router closes, and return what came."""
        async with asyncio.timeout(LIMIT_S):
            return await self.reader.read(-1)

    async def is_closed(self) -> bool:
        """Wait until the router closes without another byte."""
        try:
            return await self.rest() == b""
        except ConnectionError:
            return True

    async def _body(self, head: Answer) -> bytes:
        if head.is_chunked:
            return await self.chunks()
        lengths = head.values(b"content-length")
        assert not head.values(b"transfer-encoding")
        if not lengths:
            return await self.rest()
        assert len(lengths) == 1
        try:
            return await self.reader.readexactly(int(lengths[0]))
        except asyncio.IncompleteReadError as error:
            raise CutAnswer(error.partial) from None


@dataclass(frozen=True)
class Stage:
    """A router over one decode worker, and one prefill worker where the scene has one."""

    router: Router
    worker: ScriptedWorker
    prefill: ScriptedWorker

    @asynccontextmanager
    async def connection(self, **options: Any) -> AsyncIterator[Connection]:
        """Connect to the router; options of :func:`asyncio.open_connection`."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.router.server.port, limit=1 << 22, **options)
        try:
            yield Connection(reader, writer)
        finally:
            writer.transport.abort()

    async def ask(self, data: bytes, *, has_body: bool = True) -> Answer:
        """Send a request over a connection of its own and return the answer."""
        async with self.connection() as connection:
            return await connection.ask(data, has_body=has_body)

    async def works(self) -> bool:
        """Whether an ordinary request over a new connection is answered as the script says; it is not recorded."""
        before = len(self.worker.requests)
        answer = await self.ask(completion())
        assert len(self.worker.requests) == before + 1
        del self.worker.requests[before:]
        return answer.status == 200


Scene = Callable[[Stage], Awaitable[None]]


def play(
    scene: Scene,
    script: Script = answer_empty,
    *,
    prefill: Script | None = None,
    loop: str = "uvloop",
    **settings: Any,
) -> None:
    """Play a scene, and fail when the router has logged an error or left one unhandled, or sent a worker nonsense.

    Args:
        scene: what happens.
        script: of the decode worker.
        prefill: script of the prefill worker; without one the router does not know of it.
        loop: name of the event loop.
        settings: of the router, as :func:`running_router` takes them.
    """
    problems: list[object] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info is not None or record.levelno >= logging.ERROR or record.name == "asyncio":
                problems.append(record.getMessage())

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        async with scripted_worker(script) as worker, scripted_worker(prefill or answer_empty) as prefill_worker:
            prefills = [] if prefill is None else [prefill_worker.url]
            async with running_router(prefill=prefills, decode=[worker.url], **settings) as router:
                async with asyncio.timeout(60.0):
                    await scene(Stage(router, worker, prefill_worker))
            assert worker.garbage == prefill_worker.garbage == []

    listener = Listener(logging.WARNING)
    logging.getLogger().addHandler(listener)
    try:
        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            runner.run(run())
    finally:
        logging.getLogger().removeHandler(listener)
    assert problems == [], problems
