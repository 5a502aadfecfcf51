"""run one emulated engine behind HTTP"""

from __future__ import annotations

import argparse
import asyncio
import signal
from contextlib import AbstractAsyncContextManager
from typing import Any

from dolphin_sim.cli.values import count, positive_number
from dolphin_sim.emulator.faults import KINDS, Fault
from dolphin_sim.emulator.options import DEFAULT_PROFILE, ENGINE_NAMES, EVENT_ENCODINGS, ROLES, WorkerOptions
from dolphin_sim.emulator.worker import EmulatedWorker, emulated_worker
from dolphin_sim.hardware import load_profile

NAME = "engine"
_SHARED_OPTIONS = (
    "engine",
    "model",
    "time_scale",
    "host",
    "block_tokens",
    "max_model_len",
    "api_key",
    "kv_lease_s",
    "kv_wait_s",
    "old_parameters",
    "recompute_lost_kv",
    "kv_events",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = (
        "Runs an emulated worker: real HTTP, real streaming, the times of a hardware profile, and nothing computed. "
        "It answers every prompt with words that depend on the prompt alone."
    )
    parser.add_argument("--role", choices=ROLES, default="aggregated", help="%(default)s unless given")
    parser.add_argument("--port", type=port, default=8000, help="%(default)s unless given; 0 for a free one")
    parser.add_argument("--side-channel-port", type=port, default=0, help="where decode workers fetch KV caches")
    parser.add_argument("--bootstrap-port", type=port, default=0, help="of SGLang and Mooncake; a free one by default")
    parser.add_argument("--receive-port", type=port, default=0, help="where a decode worker of LMCache takes KV caches")
    parser.add_argument("--notice-endpoint", metavar="ADDRESS", help="of a router, for LMCache's prefill workers")
    parser.add_argument("--kv-events-port", type=port, default=0, help="a free one by default")
    parser.add_argument("--kv-replay-port", type=port, default=0, help="a free one by default")
    add_worker_arguments(parser)


def add_worker_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that one worker and a cluster share."""
    parser.add_argument("--engine", choices=ENGINE_NAMES, default="vllm-nixl", help="%(default)s unless given")
    parser.add_argument("--profile", default=DEFAULT_PROFILE, help="hardware; see `dolphin-sim profiles`")
    parser.add_argument("--model", default="emulated", metavar="NAME", help="%(default)s unless given")
    parser.add_argument(
        "--time-scale", type=positive_number, default=1.0, metavar="X", help="simulated seconds in a second"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; %(default)s unless given")
    parser.add_argument("--block-tokens", type=count, default=16, metavar="N", help="of the prefix cache; %(default)s")
    parser.add_argument("--max-model-len", type=count, metavar="N", help="most tokens of prompt and answer together")
    parser.add_argument("--api-key", metavar="KEY", help="that clients must send")
    parser.add_argument(
        "--kv-lease-s", type=positive_number, metavar="S", help="how long a KV cache is kept that nobody fetches"
    )
    parser.add_argument("--kv-wait-s", type=positive_number, metavar="S", help="how long a decode worker waits for one")
    parser.add_argument(
        "--old-parameters", action="store_true", help="kv_transfer_params as vLLM 0.11 has them instead of 0.33"
    )
    parser.add_argument(
        "--recompute-lost-kv", action="store_true", help="compute a KV cache that cannot be had instead of failing"
    )
    parser.add_argument("--kv-events", choices=EVENT_ENCODINGS, help="publish KV events as this version of vLLM does")
    kinds = "; ".join(f"{kind}: {meaning}" for kind, meaning in KINDS.items())
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        type=_fault,
        metavar="KIND[=VALUE][,times=N]",
        help=f"what goes wrong from the start. {kinds}",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run until told to stop, and return the exit code."""
    ports = {
        name: getattr(arguments, name)
        for name in (
            "port",
            "side_channel_port",
            "bootstrap_port",
            "receive_port",
            "notice_endpoint",
            "kv_events_port",
            "kv_replay_port",
        )
    }
    options = worker_options(arguments, role=arguments.role, **ports)
    asyncio.run(_serve(emulated_worker(options)))
    return 0


def worker_options(arguments: argparse.Namespace, **more: Any) -> WorkerOptions:
    """Return the options that the shared arguments give.

    Raises:
        ValueError: there is no such profile.
    """
    shared = {name: getattr(arguments, name) for name in _SHARED_OPTIONS}
    return WorkerOptions(profile=load_profile(arguments.profile), faults=tuple(arguments.fault), **shared, **more)


def describe(worker: EmulatedWorker) -> str:
    """Return one line about a running worker."""
    options = worker.options
    parts = [f"{options.role:<10} {worker.url}"]
    if worker.bootstrap_port is not None:
        parts.append(f"bootstrap port {worker.bootstrap_port}")
    return ", ".join(parts)


def told_to_stop() -> asyncio.Event:
    """Return an event that SIGINT and SIGTERM set."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    return stopped


def port(text: str) -> int:
    """Return a port number."""
    if not (text.isascii() and text.isdecimal() and int(text) <= 65_535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)


def _fault(text: str) -> str:
    try:
        Fault.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


async def _serve(worker: AbstractAsyncContextManager[EmulatedWorker]) -> None:
    stopped = told_to_stop()
    async with worker as running:
        print(describe(running), flush=True)
        await stopped.wait()
