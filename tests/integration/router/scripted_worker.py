"""A worker over raw sockets that does what a test's script says, byte for byte, and records what it is sent."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Header = tuple[bytes, bytes]


@dataclass(frozen=True)
class WorkerRequest:
    """One request exactly as it came, and taken apart."""

    raw_head: bytes
    """Up to and with the empty line."""
    body: bytes
    connection: int
    """Number of the connection on which it came, from 0."""

    @property
    def method(self) -> bytes:
        return self.raw_head.split(b" ", 2)[0]

    @property
    def target(self) -> bytes:
        return self.raw_head.split(b" ", 2)[1]

    @property
    def headers(self) -> list[Header]:
        lines = self.raw_head.split(b"\r\n")[1:-2]
        return [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of all headers with this name, given in lower case."""
        return [value for key, value in self.headers if key == name]

    def json(self) -> Any:
        return json.loads(self.body)


class Peer:
    """The worker's end of a connection, for scripts."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self.reader = reader
        self.writer = writer
        self.number = number

    async def send(self, *pieces: bytes) -> None:
        """Send pieces one by one, each in a packet of its own as far as the loop can do that."""
        for piece in pieces:
            if self.writer.is_closing():
                raise ConnectionResetError("the router has closed the connection")
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)

    async def answer(self, body: bytes = b"{}", *, status: int = 200, headers: Iterable[Header] = ()) -> None:
        """Send a whole answer with a length."""
        await self.send(sized_answer(body, status=status, headers=headers))

    async def start_stream(self) -> None:
        """Send the head of a stream of events."""
        await self.send(STREAM_HEAD)

    async def event(self, text: str = "x") -> None:
        """Send one event of a stream."""
        await self.send(chunk(event(text)))

    async def end_stream(self) -> None:
        """End a stream as engines do."""
        await self.send(chunk(b"data: [DONE]\n\n") + LAST_CHUNK)

    async def until_closed(self) -> bytes:
        """Wait until the router closes the connection, and return what it sent until then."""
        try:
            return await self.reader.read(-1)
        except ConnectionError:
            return b""

    def close(self) -> None:
        """Close in good order."""
        self.writer.close()

    def reset(self) -> None:
        """Close by a reset: what is under way is lost."""
        raw: socket.socket = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Script = Callable[[WorkerRequest, Peer], Awaitable[None]]
"""Answers one request. The connection stays open afterwards unless the script has closed it."""


async def answer_empty(request: WorkerRequest, peer: Peer) -> None:
    """The script of a worker that was given none."""
    await peer.answer()


@dataclass
class ScriptedWorker:
    """What a test sees of the worker."""

    script: Script
    url: str = ""
    requests: list[WorkerRequest] = field(default_factory=list)
    """In the order of their arrival, without ``GET /health``, which is answered without the script."""
    garbage: list[bytes] = field(default_factory=list)
    """What came and was no complete request; must stay empty."""
    peers: set[Peer] = field(default_factory=set)
    """Connections that are open."""
    connections: int = 0
    """Connections that there have been."""
    is_healthy: bool = True
    errors: list[BaseException] = field(default_factory=list)
    """What scripts raised; :func:`scripted_worker` raises the first of them at its end."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer, self.connections)
        self.connections += 1
        self.peers.add(peer)
        try:
            while (request := await self._read(reader, peer.number)) is not None and not writer.is_closing():
                if request.raw_head.startswith(b"GET /health "):
                    await peer.answer(b"", status=200 if self.is_healthy else 503)
                    continue
                self.requests.append(request)
                await self.script(request, peer)
        except ConnectionError:
            pass
        except asyncio.CancelledError:
            # The test is over; asyncio's stream server would report this as an error.
            pass
        except BaseException as error:
            self.errors.append(error)
        finally:
            self.peers.discard(peer)
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, connection: int) -> WorkerRequest | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            if isinstance(error, asyncio.LimitOverrunError) or error.partial:
                self.garbage.append(getattr(error, "partial", b"(a very long head)"))
            return None
        request = WorkerRequest(head, b"", connection)
        lengths = request.values(b"content-length")
        if len(lengths) > 1 or request.values(b"transfer-encoding"):
            self.garbage.append(head)
            return None
        try:
            body = await reader.readexactly(int(lengths[0]) if lengths else 0)
        except asyncio.IncompleteReadError:
            return None  # The router has given the request up.
        return WorkerRequest(head, body, connection)


@asynccontextmanager
async def scripted_worker(script: Script = answer_empty) -> AsyncIterator[ScriptedWorker]:
    """Run a worker on a free port of the loopback interface."""
    worker = ScriptedWorker(script)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(worker.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=1 << 20)
    worker.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield worker
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if worker.errors:
        raise worker.errors[0]


# Pieces of answers

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """Return one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(text: str) -> bytes:
    """Return one event of a completion's stream."""
    return b"data: " + json.dumps({"choices": [{"index": 0, "text": text}]}).encode() + b"\n\n"


def sized_answer(body: bytes, *, status: int = 200, headers: Iterable[Header] = ()) -> bytes:
    """Return a whole answer with a length."""
    lines = [b"HTTP/1.1 %d Status" % status, b"content-length: %d" % len(body)]
    lines.extend(b"%b: %b" % header for header in headers)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
