"""Clients that each send one request after the other and check every answer."""

from __future__ import annotations

import asyncio
import socket
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, cast

import httptools
from exchanges import Shape, fault, fault_word_for_word

KEPT_ERRORS: Final = 5


@dataclass
class Results:
    """What all clients saw. Only answers that end inside the window are measured; all are checked."""

    answers: int = 0
    """Complete and right, in the window or not."""
    latencies_s: array[float] = field(default_factory=lambda: array("d"))
    first_chunks_s: array[float] = field(default_factory=lambda: array("d"))
    errors: int = 0
    first_errors: list[str] = field(default_factory=list)
    open_clients: int = 0
    measuring: bool = False
    stopping: bool = False

    def fail(self, reason: str) -> None:
        """Count an error; keep the first few."""
        self.errors += 1
        if len(self.first_errors) < KEPT_ERRORS:
            self.first_errors.append(reason)


class Connection(asyncio.Protocol):
    """Sends one request at a time and tells when its answer is complete, or what went wrong."""

    def __init__(self, answered: Callable[[Connection], None], failed: Callable[[str], None]) -> None:
        self._answered = answered
        self._failed = failed
        self._parser = httptools.HttpResponseParser(self)
        self.pieces: list[bytes] = []
        self.first_piece_at_s = 0.0
        self._waiting = False

    def send(self, request: bytes) -> None:
        """Send the next request."""
        self.pieces.clear()
        self._waiting = True
        self.transport.write(request)

    @property
    def status(self) -> int:
        """The status of the answer that has just ended."""
        return int(self._parser.get_status_code())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(f"an answer that is not HTTP: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        if self._waiting:
            self._end(f"connection lost after {sum(map(len, self.pieces))} bytes of the answer: {error}")

    def on_body(self, piece: bytes) -> None:
        if not self.pieces:
            self.first_piece_at_s = time.perf_counter()
        self.pieces.append(piece)

    def on_message_complete(self) -> None:
        self._waiting = False
        if self._parser.should_keep_alive():
            self._answered(self)
        else:
            self._end(f"status {self.status} and the connection closes: {b''.join(self.pieces)[:200]!r}")

    def _end(self, reason: str) -> None:
        self._waiting = False
        self._failed(reason)
        self.transport.close()


class Client:
    """Sends a request, waits for its answer, checks it, and begins anew. Its first error is its end."""

    def __init__(self, shape: Shape, requests: Iterator[bytes], results: Results) -> None:
        self._stream = shape.stream
        self._requests = requests
        self._results = results
        self._began_at_s = 0.0
        self._read_closely = True

    async def start(self, port: int) -> None:
        """Connect and send the first request."""
        loop = asyncio.get_running_loop()
        _, self._connection = await loop.create_connection(
            lambda: Connection(self._answered, self._failed), "127.0.0.1", port
        )
        self._results.open_clients += 1
        self._send()

    def _send(self) -> None:
        self._began_at_s = time.perf_counter()
        self._connection.send(next(self._requests))

    def _answered(self, connection: Connection) -> None:
        now_s = time.perf_counter()
        results = self._results
        body = b"".join(connection.pieces)
        reason = fault(connection.status, body, stream=self._stream)
        if reason is None and self._read_closely:
            reason, self._read_closely = fault_word_for_word(body, stream=self._stream), False
        if reason is not None:
            self._failed(reason)
            return
        results.answers += 1
        if results.measuring:
            results.latencies_s.append(now_s - self._began_at_s)
            results.first_chunks_s.append(connection.first_piece_at_s - self._began_at_s)
        if results.stopping:
            self._close()
        else:
            self._send()

    def _failed(self, reason: str) -> None:
        self._results.fail(reason)
        self._close()

    def _close(self) -> None:
        self._results.open_clients -= 1
        self._connection.transport.close()


class DirectClient(Client):
    """Does what a router does, without one: asks the prefill worker, then the decode worker. The ceiling."""

    async def start_direct(self, prefill_requests: Iterator[bytes], prefill_port: int, decode_port: int) -> None:
        """Connect to both workers and send the first request."""
        loop = asyncio.get_running_loop()
        self._prefill_requests = prefill_requests
        _, self._prefill = await loop.create_connection(
            lambda: Connection(self._prefilled, self._failed), "127.0.0.1", prefill_port
        )
        await self.start(decode_port)

    def _send(self) -> None:
        self._began_at_s = time.perf_counter()
        self._prefill.send(next(self._prefill_requests))

    def _prefilled(self, connection: Connection) -> None:
        reason = fault(connection.status, b"".join(connection.pieces), stream=False)
        if reason is None:
            self._connection.send(next(self._requests))
        else:
            self._failed(f"prefill: {reason}")

    def _close(self) -> None:
        super()._close()
        self._prefill.transport.close()
