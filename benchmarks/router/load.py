"""A closed loop of clients against a router, or against the stub workers themselves, that checks every answer.

    python benchmarks/router/load.py --port N [--connections N] [--stream] [--prompt-bytes N] ...
    python benchmarks/router/load.py --direct PREFILL_PORT DECODE_PORT ...

Every client sends its next request when its answer is complete. A stream is complete when all its events have come;
the first answer of every client is read word for word. Prints one JSON object; exits with 1 when any answer was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import uvloop
from clients import Client, DirectClient, Results
from exchanges import COUNTER_DIGITS, Shape
from processes import ProcessTree, machine_busy_s
from stub_engine import TRANSFER_PARAMETERS

DRAIN_LIMIT_S: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """One measurement."""

    shape: Shape
    connections: int
    stagger_s: float
    """Between the starts of two clients."""
    warm_up_s: float
    measured_s: float
    router_pid: int | None
    harness_pids: Sequence[int]

    async def run(self, ports: Sequence[int]) -> dict[str, Any]:
        """Return what was measured: against one port a router, against two the workers."""
        results = Results()
        await self._start(results, ports)
        await self._pass(results, self.warm_up_s)
        router = ProcessTree(self.router_pid) if self.router_pid is not None else None
        harness = [ProcessTree(pid) for pid in self.harness_pids]
        results.measuring, began_s, busy_before_s = True, time.perf_counter(), machine_busy_s()
        cpu_before_s, harness_before_s = router.cpu_s() if router else 0.0, sum(tree.cpu_s() for tree in harness)
        await self._pass(results, self.measured_s)
        results.measuring, ended_s, busy_s = False, time.perf_counter(), machine_busy_s() - busy_before_s
        cpu_s = router.cpu_s() - cpu_before_s if router else 0.0
        harness_s = sum(tree.cpu_s() for tree in harness) - harness_before_s
        rss_mib = router.rss_mib() if router else None
        results.stopping = True
        limit_s = time.perf_counter() + DRAIN_LIMIT_S
        while results.open_clients and time.perf_counter() < limit_s:
            await asyncio.sleep(0.01)
        if results.open_clients:
            results.fail(
                f"{results.open_clients} answers were not complete {DRAIN_LIMIT_S:.0f} s after the last request"
            )
        measured, took_s = len(results.latencies_s), ended_s - began_s
        return {
            "answers": results.answers,
            "measured_answers": measured,
            "measured_s": took_s,
            "answers_per_s": measured / took_s,
            "latency_ms": percentiles_ms(results.latencies_s),
            "first_chunk_ms": percentiles_ms(results.first_chunks_s) if self.shape.stream else None,
            "router_cpu_us_per_answer": cpu_s / measured * 1e6 if router and measured else None,
            "router_rss_mib": rss_mib,
            "router_cores": cpu_s / took_s if router else None,
            "harness_cores": harness_s / took_s,
            "other_cores": max(0.0, busy_s - cpu_s - harness_s) / took_s,
            "errors": results.errors,
            "first_errors": results.first_errors,
        }

    async def _start(self, results: Results, ports: Sequence[int]) -> None:
        if len(ports) == 1:
            requests = self.shape.requests()
            for _ in range(self.connections):
                await Client(self.shape, requests, results).start(ports[0])
                await asyncio.sleep(self.stagger_s)
            return
        requests = self.shape.requests(kv_transfer_params=TRANSFER_PARAMETERS)
        prefill = Shape(prompt_bytes=self.shape.prompt_bytes, stream=False)
        prefill_requests = prefill.requests(kv_transfer_params={"do_remote_decode": True, "do_remote_prefill": False})
        for _ in range(self.connections):
            await DirectClient(self.shape, requests, results).start_direct(prefill_requests, *ports)
            await asyncio.sleep(self.stagger_s)

    @staticmethod
    async def _pass(results: Results, duration_s: float) -> None:
        """Let the clients work; come back early when none is left."""
        until_s = time.perf_counter() + duration_s
        while results.open_clients and (left_s := until_s - time.perf_counter()) > 0:
            await asyncio.sleep(min(left_s, 0.25))


def percentiles_ms(values_s: Sequence[float]) -> dict[str, float] | None:
    """Return the median and the 99th percentile; none when nothing was measured."""
    if not values_s:
        return None
    ordered = sorted(values_s)
    return {name: ordered[int(len(ordered) * share)] * 1e3 for name, share in (("p50", 0.5), ("p99", 0.99))}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and return 1 when an answer was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    aim = parser.add_mutually_exclusive_group(required=True)
    aim.add_argument("--port", type=int, help="of a router on 127.0.0.1")
    aim.add_argument("--direct", type=int, nargs=2, metavar=("PREFILL_PORT", "DECODE_PORT"), help="of the workers")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--prompt-bytes", type=int, default=200, help="length of the prompt, at least 12")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--stagger-ms", type=float, default=0.0, help="between the starts of two clients")
    parser.add_argument("--warm-up-s", type=float, default=1.0)
    parser.add_argument("--measured-s", type=float, default=5.0)
    parser.add_argument("--router-pid", type=int, help="whose CPU time and memory is measured, with its children")
    parser.add_argument("--stub-pid", type=int, help="whose CPU time counts as the harness's, with this process's")
    parser.add_argument("--core", type=int, help="run on this core alone")
    arguments = parser.parse_args(argv)
    if arguments.prompt_bytes < COUNTER_DIGITS or arguments.connections < 1:
        parser.error(f"--prompt-bytes must be at least {COUNTER_DIGITS}, --connections at least 1")
    if arguments.core is not None:
        os.sched_setaffinity(0, {arguments.core})
    gc.disable()  # nothing here makes cycles while it measures, and a collection would show in the latencies
    load = Load(
        shape=Shape(prompt_bytes=arguments.prompt_bytes, stream=arguments.stream),
        connections=arguments.connections,
        stagger_s=arguments.stagger_ms / 1e3,
        warm_up_s=arguments.warm_up_s,
        measured_s=arguments.measured_s,
        router_pid=arguments.router_pid,
        harness_pids=[os.getpid(), *([arguments.stub_pid] if arguments.stub_pid is not None else [])],
    )
    try:
        result = uvloop.run(load.run(arguments.direct or [arguments.port]))
    except OSError as error:
        print(f"load: cannot connect: {error}. Is the router or the stub engine running?", file=sys.stderr)
        return 2
    print(json.dumps(result))
    return 1 if result["errors"] or not result["measured_answers"] else 0


if __name__ == "__main__":
    sys.exit(main())
