"""What a request costs in the router's own code: no sockets, no kernel, no network.

Whole requests run with all features on and both legs, over transports that only collect what is written. A busy machine
can only add to a figure, so the best of many requests is reported. `PYTHONPATH=build/compiled` measures the compiled
data plane.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import socket
import time
from collections.abc import Iterable, Sequence
from typing import Any, cast

import uvloop
from remote_table import remote_table

from dolphin_router import data_plane
from dolphin_router.contract import RouterConfig, WorkerAddress, Workers
from dolphin_router.fleet import WorkerState
from dolphin_router.http.server_connection import ServerConnection
from dolphin_router.http.upstream import UpstreamConnection
from dolphin_router.process.options import Options
from dolphin_router.process.router import Router
from dolphin_router.routing import ActiveTable
from dolphin_router.sources.config_file import workers_of

PROMPT_BYTES = (200, 8_000, 32_768, 220_000)
MOST_FED_BYTES = 65_536
"""What a socket gives at once, about."""
LIMIT_US = 20.0
"""Of a decision on 8,000 bytes of prompt, about 2,000 tokens."""

_PARAMETERS = (
    b'{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4]],'
    b'"remote_engine_id":"prefill","remote_request_id":"chatcmpl-1","remote_host":"127.0.0.1","remote_port":5600,'
    b'"tp_size":1}'
)
_ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"m","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":" token"},"finish_reason":"length"}],"usage":{"prompt_tokens":50,'
    b'"total_tokens":51,"completion_tokens":1,"prompt_tokens_details":null},"kv_transfer_params":%b}'
)


class MeasuredRouter(Router):
    """Keeps the time of the fastest decision: from the parsed request to the route."""

    fastest_decision_s = float("inf")

    def decided(self, seconds: float) -> None:
        super().decided(seconds)
        self.fastest_decision_s = min(self.fastest_decision_s, seconds)


class Socket:
    """What a connection asks of its socket."""

    family = socket.AF_UNIX


class Collector:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self.written.extend(pieces)

    def take(self) -> bytes:
        data = b"".join(self.written)
        self.written.clear()
        return data

    def get_extra_info(self, name: str) -> Any:
        return Socket()

    def set_write_buffer_limits(self, *, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None:
        raise AssertionError("a connection was cut")


class Worker:
    """One end of a connection that the router believes to be one to a worker."""

    def __init__(self, state: WorkerState, answer: bytes) -> None:
        self._state = state
        self._answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
            len(answer),
            answer,
        )
        self.transport = Collector()
        self._connection = UpstreamConnection(state.pool)
        self._connection.connection_made(cast(Any, self.transport))

    def keep(self) -> None:
        """Let the connection wait for a call, as one that was just used."""
        self._state.pool.forget(self._connection)
        self._state.pool.release(self._connection)

    def answer(self) -> None:
        self.transport.written.clear()
        self._connection.data_received(self._answer)


class Bench:
    """A router for two prefill and two decode workers, and one client."""

    def __init__(self) -> None:
        config = RouterConfig(
            engine="vllm-nixl",
            workers=Workers(
                prefill=tuple(WorkerAddress(url=f"http://127.0.0.1:{port}") for port in (1, 2)),
                decode=tuple(WorkerAddress(url=f"http://127.0.0.1:{port}") for port in (3, 4)),
            ),
        )
        self.router = MeasuredRouter(config, Options(host="127.0.0.1", port=0, secret=b"x" * 32))
        self.router.plane.active = ActiveTable.from_table(remote_table())
        self.router.metrics.use_slo(remote_table().slo)
        fleet = self.router.fleet
        fleet.update(workers_of(config))
        for state in fleet.workers:
            fleet.set_ready(state, True)
        self._prefills = [Worker(state, _ANSWER % _PARAMETERS) for state in fleet.ready["prefill"]]
        self._decodes = [Worker(state, _ANSWER % b"null") for state in fleet.ready["decode"]]
        self._client = Collector()
        self._connection = ServerConnection(self.router.server)
        self._connection.connection_made(cast(Any, self._client))

    def keep_connections(self) -> None:
        for worker in (*self._prefills, *self._decodes):
            worker.keep()

    def measure(self, request: bytes) -> tuple[float, float, float]:
        """Return the seconds until the prefill leg was sent, from its answer to the decode leg, and from its answer to
        the end of the client's."""
        pieces = [request[start : start + MOST_FED_BYTES] for start in range(0, len(request), MOST_FED_BYTES)]
        clock = time.perf_counter
        started_s = clock()
        for piece in pieces:
            self._connection.data_received(piece)
        to_prefill_s = clock() - started_s
        (prefill,) = [worker for worker in self._prefills if worker.transport.written]
        started_s = clock()
        prefill.answer()
        to_decode_s = clock() - started_s
        (decode,) = [worker for worker in self._decodes if worker.transport.written]
        started_s = clock()
        decode.answer()
        to_client_s = clock() - started_s
        answer = self._client.take()
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"the router answered {answer[:200]!r}")
        return to_prefill_s, to_decode_s, to_client_s


def request_of(number: int, prompt_bytes: int) -> bytes:
    """Return a request with a prompt that no other number has."""
    text = f"{number:012d}" + "lorem ipsum " * (prompt_bytes // 12)
    content = {"model": "m", "messages": [{"role": "user", "content": text[:prompt_bytes]}], "max_tokens": 64}
    body = json.dumps(content).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        b"authorization: Bearer key\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )


async def measure(prompt_bytes: int, *, duration_s: float) -> dict[str, float]:
    """Return the best times of requests with new prompts of one length, in microseconds."""
    bench = Bench()
    gc.collect()
    gc.freeze()
    best = [float("inf")] * 4
    number = 0
    until_s = time.perf_counter() + duration_s
    while time.perf_counter() < until_s:
        bench.keep_connections()
        for _ in range(20):
            number += 1
            parts = bench.measure(request_of(number, prompt_bytes))
            best = [min(pair) for pair in zip(best, (*parts, sum(parts)), strict=True)]
        await asyncio.sleep(0)
    names = ("to_prefill_us", "to_decode_us", "to_client_us", "request_us")
    times_us = {name: seconds * 1e6 for name, seconds in zip(names, best, strict=True)}
    return {**times_us, "decision_us": bench.router.fastest_decision_s * 1e6}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the times; return 1 when a decision takes too long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object, in microseconds")
    parser.add_argument(
        "--bytes", type=int, nargs="+", default=PROMPT_BYTES, metavar="N", help="lengths of prompts, 12 at least"
    )
    parser.add_argument("--duration", type=float, default=5.0, metavar="S", help="for each, %(default)s s unless given")
    arguments = parser.parse_args(argv)
    is_compiled = not str(data_plane.__file__).endswith(".py")
    results = {size: uvloop.run(measure(size, duration_s=arguments.duration)) for size in arguments.bytes}
    if arguments.json:
        print(json.dumps({"compiled": is_compiled, "prompt_bytes": results}))
    else:
        print("compiled" if is_compiled else "interpreted")
        print(f"{'prompt':>10}{'request':>10}{'decision':>10}{'to prefill':>12}{'to decode':>11}{'to client':>11}")
        for size, times_us in results.items():
            print(
                f"{size:>8} B{times_us['request_us']:>7.1f} µs{times_us['decision_us']:>7.1f} µs"
                f"{times_us['to_prefill_us']:>9.1f} µs{times_us['to_decode_us']:>8.1f} µs"
                f"{times_us['to_client_us']:>8.1f} µs"
            )
    return int(8_000 in results and results[8_000]["decision_us"] > LIMIT_US)


if __name__ == "__main__":
    raise SystemExit(main())
