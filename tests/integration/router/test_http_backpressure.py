"""Clients that read slowly or not at all cost little memory, and nobody else's time."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

import pytest
import uvloop
from raw_client import STREAM_BODY, Connection, Stage, completion, play
from router_under_test import until
from scripted_worker import LAST_CHUNK, Peer, ScriptedWorker, WorkerRequest, chunk, event, scripted_worker
from serve_process import serving

from dolphin_router.contract.router_config import Timeouts
from dolphin_router.http.server_connection import HIGH_WATER_BYTES

EVENTS = 10_000
EVENT = event("token " * 30)
CLIENTS = 500
READ_BYTES = 262_144
"""What uvloop reads at once."""


def resident_bytes(process_id: int) -> int:
    """Return the memory that a process holds."""
    for line in Path(f"/proc/{process_id}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not say")


async def long_stream(asked: WorkerRequest, peer: Peer) -> None:
    """A stream as long as the test wants one, or one event for who does not stream."""
    if not asked.json().get("stream"):
        await peer.answer()
        return
    raw: socket.socket = peer.writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
    peer.writer.transport.set_write_buffer_limits(high=16_384)
    await peer.start_stream()
    some = chunk(EVENT) * 100
    for _ in range(EVENTS // 100):
        await peer.send(some)
    await peer.send(chunk(b"data: [DONE]\n\n") + LAST_CHUNK)


@asynccontextmanager
async def slow_reader(port: int) -> AsyncIterator[Connection]:
    """A connection whose kernel takes little ahead of its program."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=raw, limit=4_096)
    try:
        yield Connection(reader, writer)
    finally:
        writer.transport.abort()


def test_a_slow_client_gets_everything_in_the_end() -> None:
    async def scene(stage: Stage) -> None:
        async with slow_reader(stage.router.server.port) as connection:
            await connection.send(completion(STREAM_BODY))
            received = bytearray()
            while not received.endswith(LAST_CHUNK):
                received += await connection.reader.read(65_536)
                await asyncio.sleep(0.001)
            assert received.count(b"data: ") == EVENTS + 1
            assert b"data: [DONE]" in received[-100:]

    play(scene, long_stream, timeouts=Timeouts(client_stall_s=30.0))


def test_a_worker_is_not_read_from_while_the_client_does_not_read() -> None:
    async def scene(stage: Stage) -> None:
        sent = 0

        async def count(asked: WorkerRequest, peer: Peer) -> None:
            nonlocal sent
            await peer.start_stream()
            while True:
                await peer.send(chunk(b"data: " + b"x" * 9_992 + b"\n\n"))
                sent += 10_000

        stage.worker.script = count
        async with slow_reader(stage.router.server.port) as connection:
            await connection.send(completion(STREAM_BODY))
            await until(lambda: sent > 0, "the stream has begun")
            before = -1
            while sent != before:
                before = sent
                await asyncio.sleep(0.3)
            (served,) = stage.router.server.connections
            assert 0 < served._transport.get_write_buffer_size() <= HIGH_WATER_BYTES + READ_BYTES + 1_000

    play(scene)


def test_who_reads_nothing_for_too_long_is_cut_and_the_worker_sees_it() -> None:
    async def scene(stage: Stage) -> None:
        async with slow_reader(stage.router.server.port) as connection:
            await connection.send(completion(STREAM_BODY))
            connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
            plane = stage.router.plane
            await until(lambda: plane.admission.taken == 1, "the request has arrived")
            await until(lambda: plane.admission.taken == 0, "the router has given up", limit_s=5.0)
            await until(lambda: not stage.router.server.connections, "the connection is closed", limit_s=1.0)

    play(scene, long_stream, timeouts=Timeouts(client_stall_s=0.4))


@pytest.mark.slow
def test_500_stalled_clients_stay_within_the_stated_memory_and_slow_nobody(tmp_path: Path) -> None:
    async def run() -> None:
        async with scripted_worker(long_stream) as worker:
            config = tmp_path / "router.json"
            document = {
                "format": "dolphinrouting.dev/router/v1",
                "engine": "vllm-nixl",
                "workers": {"decode": [{"url": worker.url}]},
                "timeouts": {"client_stall_s": 6.0},
            }
            config.write_text(json.dumps(document))
            async with serving("--config", str(config), workers=[worker.url]) as router:
                idle_bytes = resident_bytes(router.process.pid)
                await stall_all(worker, router.port, router.process.pid, idle_bytes)

    async def stall_all(worker: ScriptedWorker, port: int, process_id: int, idle_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            for _ in range(CLIENTS):
                connection = await stack.enter_async_context(slow_reader(port))
                connection.writer.write(completion(STREAM_BODY))
                connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
            most_bytes, settled_s = 0, loop.time()
            while loop.time() - settled_s < 0.5:
                await asyncio.sleep(0.05)
                if (held_bytes := resident_bytes(process_id) - idle_bytes) > most_bytes:
                    most_bytes, settled_s = held_bytes, loop.time()
            assert 0 < most_bytes < CLIENTS * (HIGH_WATER_BYTES + READ_BYTES)
            waits_s = []
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(50):
                asked_s = perf_counter()
                assert (await Connection(reader, writer).ask(completion())).status == 200
                waits_s.append(perf_counter() - asked_s)
            writer.transport.abort()
            print(f"held {most_bytes / 1e6:.0f} MB, median wait {median(waits_s) * 1e3:.2f} ms")
            # Nothing is left to do for those that have stalled.
            assert median(waits_s) < 0.1
            # They are given up in the end, and the worker is told.
            await until(lambda: len(worker.peers) <= 3, "the worker is free", limit_s=20.0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
