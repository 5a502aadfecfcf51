"""Sockets, certificates, and stopping without cutting an answer."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from raw_client import BODY, LOOPS, STREAM_BODY, CutAnswer, Stage, completion, play, request
from router_under_test import OPTIONS, until
from scripted_worker import Peer, WorkerRequest, event

from dolphin_router.http.limits import HttpLimits


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Paths of a certificate for 127.0.0.1 and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("NO TEST OF TLS: there is no openssl command to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=router"
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem")]
    name = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command.split(), *files, *name], check=True, capture_output=True)
    return folder / "certificate.pem", folder / "key.pem"


@pytest.mark.parametrize("loop", LOOPS)
def test_small_packets_leave_at_once_on_both_sides(loop: str) -> None:
    async def scene(stage: Stage) -> None:
        async with stage.connection() as connection:
            assert (await connection.ask(completion())).status == 200
            called = [connection for state in stage.router.fleet.workers for connection in state.pool._idle]
            assert called
            for served in (*stage.router.server.connections, *called):
                raw = served._transport.get_extra_info("socket")
                assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    play(scene, loop=loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_tls_by_certificate_files(loop: str, certificate: tuple[Path, Path]) -> None:
    async def stream(asked: WorkerRequest, peer: Peer) -> None:
        await peer.start_stream()
        for _ in range(20):
            await peer.event("x" * 30_000)
        await peer.end_stream()

    async def scene(stage: Stage) -> None:
        stage.router.server.limits = HttpLimits(body_bytes=300_000, linger_s=0.2, head_timeout_s=0.5)
        trust = ssl.create_default_context(cafile=str(certificate[0]))
        async with stage.connection(ssl=trust) as connection:
            for _ in range(2):
                answer = await connection.ask(completion(STREAM_BODY))
                assert answer.body == event("x" * 30_000) * 20 + b"data: [DONE]\n\n"
            answer = await connection.ask(completion(headers=[(b"Connection", b"close")]))
            assert answer.status == 200
            assert await connection.is_closed()
        # Refusals have their own way of closing.
        async with stage.connection(ssl=trust) as connection:
            assert (await connection.ask(b"nonsense\r\n\r\n")).status == 400
        async with stage.connection(ssl=trust) as connection:
            await connection.send(request(b"POST", b"/v1/completions", headers=[(b"Content-Length", b"99999999")]))
            await connection.send(*[b"x" * 65_536] * 20)
            assert (await connection.answer()).status == 413
        async with stage.connection(ssl=trust) as connection:
            await connection.send(b"GET / HT")
            assert (await connection.answer()).status == 408
        # Who does not speak TLS is sent away.
        async with stage.connection() as connection:
            await connection.send(completion())
            with contextlib.suppress(ConnectionError):
                assert b"HTTP" not in await connection.rest()
        assert len(stage.worker.requests) == 3

    options = replace(OPTIONS, tls_certificate=certificate[0], tls_key=certificate[1])
    play(scene, stream, loop=loop, options=options)


@pytest.mark.parametrize("loop", LOOPS)
def test_stopping_ends_what_is_under_way_and_begins_nothing_new(loop: str) -> None:
    go_on = asyncio.Event()

    async def stream(asked: WorkerRequest, peer: Peer) -> None:
        await peer.start_stream()
        await peer.event("a")
        await go_on.wait()
        await peer.event("b")
        await peer.end_stream()

    async def scene(stage: Stage) -> None:
        port = stage.router.server.port
        async with (
            stage.connection() as idle,
            stage.connection() as used,
            stage.connection() as streaming,
            stage.connection() as sending,
        ):
            assert (await used.ask(request(b"GET", b"/health"))).status == 200
            await streaming.send(completion(STREAM_BODY))
            assert (await streaming.head()).is_chunked
            assert await streaming.chunk() == event("a")
            await sending.send(completion()[:-10])
            await until(lambda: len(stage.router.server.connections) == 4, "all are connected")
            await asyncio.sleep(0.02)  # Half a request has arrived.
            stopping = asyncio.ensure_future(stage.router.stop())
            assert await idle.is_closed()
            assert await used.is_closed()
            with pytest.raises(OSError):  # noqa: PT011
                await asyncio.open_connection("127.0.0.1", port)
            go_on.set()
            assert await streaming.chunks() == event("b") + b"data: [DONE]\n\n"
            assert await streaming.is_closed()
            answer = await sending.ask(completion()[-10:])
            assert answer.status == 200
            assert answer.values(b"connection") == [b"close"]
            assert await sending.is_closed()
            assert await stopping == 0

    play(scene, stream, loop=loop)


def test_what_does_not_end_in_time_is_cut_and_counted() -> None:
    async def endless(asked: WorkerRequest, peer: Peer) -> None:
        await peer.start_stream()
        await peer.event("a")
        await peer.until_closed()

    async def scene(stage: Stage) -> None:
        async with stage.connection() as first, stage.connection() as second, stage.connection() as half:
            for connection in (first, second):
                await connection.send(completion(STREAM_BODY))
                await connection.head()
            await half.send(b"POST /v1/completions HTT")
            await asyncio.sleep(0.02)
            begun_s = asyncio.get_running_loop().time()
            assert await stage.router.stop() == 2
            assert 0.3 <= asyncio.get_running_loop().time() - begun_s < 3.0
            assert stage.router.server.connections == set()
            assert stage.router.plane.admission.taken == 0
            for connection in (first, second):
                with pytest.raises((CutAnswer, ConnectionError)):
                    await connection.chunks()

    play(scene, endless, options=replace(OPTIONS, patience_s=0.3))


def test_pipelined_requests_behind_the_last_answer_are_left_to_another_router() -> None:
    go_on = asyncio.Event()

    async def held(asked: WorkerRequest, peer: Peer) -> None:
        await go_on.wait()
        await peer.answer()

    async def scene(stage: Stage) -> None:
        async with stage.connection() as connection:
            await connection.send(completion() + completion())
            await until(lambda: len(stage.worker.requests) == 1, "the first request has arrived")
            stopping = asyncio.ensure_future(stage.router.stop())
            await asyncio.sleep(0.01)
            go_on.set()
            answer = await connection.answer()
            assert (answer.status, answer.values(b"connection")) == (200, [b"close"])
            assert await connection.is_closed()
            assert await stopping == 0
            assert len(stage.worker.requests) == 1

    play(scene, held)


def test_who_leaves_an_answer_unread_for_too_long_is_cut() -> None:
    large = b'"%b"' % (b"x" * 900_000)

    async def answer_at_length(asked: WorkerRequest, peer: Peer) -> None:
        await peer.answer(large)

    async def drop(stage: Stage, data: bytes) -> None:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", stage.router.server.port))
        try:
            await asyncio.get_running_loop().sock_sendall(raw, data)
            server = stage.router.server
            await until(lambda: len(server.connections) == 1, "the router has accepted")
            await until(lambda: not server.connections, "the router has cut the connection", limit_s=4.0)
        finally:
            raw.close()

    async def scene(stage: Stage) -> None:
        stage.router.server.limits = HttpLimits(unread_s=0.3, keep_alive_s=0.2)
        close = [(b"Connection", b"close")]
        await drop(stage, completion(headers=close))
        await drop(stage, completion())
        await drop(stage, completion() + completion() + b"nonsense")
        assert stage.router.plane.admission.taken == 0

    play(scene, answer_at_length)


def test_who_pipelines_without_reading_is_not_read_from() -> None:
    async def scene(stage: Stage) -> None:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(raw, ("127.0.0.1", stage.router.server.port))
        flood = asyncio.ensure_future(loop.sock_sendall(raw, request(b"GET", b"/nowhere") * 1_000_000))
        try:
            await until(lambda: bool(stage.router.server.connections), "the router has accepted")
            (connection,) = stage.router.server.connections
            await until(lambda: not connection._is_reading, "the router has stopped reading")
            await asyncio.sleep(0.2)  # Time enough to take on much more.
            assert not flood.done()
            assert connection._transport.get_write_buffer_size() < 1_000_000
        finally:
            flood.cancel()
            await asyncio.gather(flood, return_exceptions=True)
            raw.close()

    play(scene)


def test_a_client_that_leaves_is_noticed_in_every_phase() -> None:
    async def wait(asked: WorkerRequest, peer: Peer) -> None:
        await peer.until_closed()

    async def scene(stage: Stage) -> None:
        async with stage.connection() as connection:
            await connection.send(completion())
            await until(lambda: len(stage.worker.requests) == 1, "the request has arrived")
        await until(lambda: stage.router.plane.admission.taken == 0, "the router has noticed", limit_s=1.0)
        await until(lambda: len(stage.worker.peers) <= 1, "the worker has noticed", limit_s=1.0)
        async with stage.connection() as connection:
            await connection.send(completion(BODY)[:-3])
            await until(lambda: len(stage.router.server.connections) == 1, "it is connected")
        await until(lambda: not stage.router.server.connections, "the router has noticed", limit_s=1.0)

    play(scene, wait)
