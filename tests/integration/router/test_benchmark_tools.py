"""The comparison's stub engine and load generator: what they say of an answer is so."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).resolve().parents[3] / "benchmarks" / "router"
BRIEF = ("--connections", "2", "--warm-up-s", "0.1", "--measured-s", "0.3")
BODY = b'{"model":"stub","messages":[{"role":"user","content":"hello"}],"stream":%b}'


@contextmanager
def stub_engine(*arguments: str) -> Iterator[tuple[int, int]]:
    """Run a stub engine; give its prefill and decode ports."""
    command = [sys.executable, str(TOOLS / "stub_engine.py"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            ports = json.loads(process.stdout.readline())
            yield ports["prefill_port"], ports["decode_port"]
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def ports() -> Iterator[tuple[int, int]]:
    """A prefill and a decode port that answer at once."""
    with stub_engine() as found:
        yield found


def load(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the load generator; return its exit code and what it printed."""
    command = [sys.executable, str(TOOLS / "load.py"), *BRIEF, *arguments]
    ended = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


def counters(port: int) -> dict[str, int]:
    """Return what the stub workers were asked for."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/stub/counters")
        found: dict[str, int] = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return found


def raw_answer(port: int, *, stream: bool) -> bytes:
    """Return a decode worker's answer byte for byte."""
    body = BODY % (b"true" if stream else b"false")
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: stub\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(head % len(body) + body)
        with connection.makefile("rb") as file:
            return file.read()


@contextmanager
def server(answer: bytes, *, closes: bool) -> Iterator[int]:
    """Answer every request with these bytes; give the port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.wfile.write(answer)
            self.close_connection = closes

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield running.server_address[1]
        finally:
            running.shutdown()
            thread.join()


@pytest.mark.parametrize("kind", [(), ("--stream",), ("--prompt-bytes", "225280")], ids=["unary", "stream", "long"])
def test_every_right_answer_is_counted_once_at_both_workers(ports: tuple[int, int], kind: tuple[str, ...]) -> None:
    before = counters(ports[1])
    code, result = load("--direct", *map(str, ports), *kind)
    asked = {name: count - before[name] for name, count in counters(ports[1]).items()}
    assert (code, result["errors"], result["first_errors"]) == (0, 0, [])
    assert result["answers"] >= result["measured_answers"] > 0
    assert asked == {**dict.fromkeys(asked, 0), "prefill": result["answers"], "decode": result["answers"]}


def test_a_leg_without_the_other_is_told_apart(ports: tuple[int, int]) -> None:
    before = counters(ports[1])
    code, result = load("--port", str(ports[1]))
    asked = {name: count - before[name] for name, count in counters(ports[1]).items()}
    assert code == 0
    assert (asked["prefill"], asked["decode"], asked["plain_decode"]) == (0, result["answers"], result["answers"])


def test_a_paced_stream_takes_its_time_but_its_first_chunk_does_not() -> None:
    with stub_engine("--chunk-interval-ms", "2") as ports:
        code, result = load("--direct", *map(str, ports), "--stream", "--measured-s", "2")
    assert code == 0
    assert result["latency_ms"]["p50"] >= 63 * 2
    assert result["first_chunk_ms"]["p50"] < result["latency_ms"]["p50"] / 2


def without_done(answer: bytes) -> bytes:
    return answer.replace(b"e\r\ndata: [DONE]\n\n\r\n", b"")


def without_a_chunk(answer: bytes) -> bytes:
    chunks = answer.split(b"\r\n\r\n", 1)[1].split(b"\r\n")
    return answer.replace(b"\r\n".join(chunks[20:22]) + b"\r\n", b"")


def with_other_words(answer: bytes) -> bytes:
    return answer.replace(b" token7", b" toker7")


def with_status_500(answer: bytes) -> bytes:
    return answer.replace(b"200 OK", b"500 Internal Server Error")


def cut(answer: bytes) -> bytes:
    return answer[: len(answer) // 2]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (with_status_500, "status 500"),
        (without_done, "65 events instead of 66"),
        (without_a_chunk, "65 events instead of 66"),
        (with_other_words, "other words"),
        (cut, "connection lost"),
    ],
)
def test_a_spoilt_stream_is_an_error(ports: tuple[int, int], spoil: Callable[[bytes], bytes], said: str) -> None:
    right = raw_answer(ports[1], stream=True)
    spoilt = spoil(right)
    assert spoilt != right
    with server(spoilt, closes=spoil is cut) as port:
        code, result = load("--port", str(port), "--stream")
    assert (code, result["answers"], result["errors"]) == (1, 0, 2)
    assert said in result["first_errors"][0]


def test_the_same_stream_unspoilt_is_none(ports: tuple[int, int]) -> None:
    with server(raw_answer(ports[1], stream=True), closes=False) as port:
        code, result = load("--port", str(port), "--stream")
    assert (code, result["errors"]) == (0, 0)


def test_a_spoilt_whole_answer_is_an_error(ports: tuple[int, int]) -> None:
    spoilt = raw_answer(ports[1], stream=False).replace(b'" token"', b'" toker"')
    with server(spoilt, closes=False) as port:
        code, result = load("--port", str(port))
    assert (code, result["answers"]) == (1, 0)
    assert "not the worker's answer" in result["first_errors"][0]
