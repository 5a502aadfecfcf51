"""run a cluster of emulated engines on loopback"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
from pathlib import Path

from dolphin_router.contract import Split
from dolphin_sim.cli.engine import add_worker_arguments, describe, port, told_to_stop, worker_options
from dolphin_sim.cli.problem_arguments import ArgumentError
from dolphin_sim.cli.values import split
from dolphin_sim.emulator.cluster import EmulatedCluster, emulated_cluster
from dolphin_sim.emulator.options import WorkerOptions

NAME = "cluster"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = (
        "Runs emulated workers in one process and prints where they listen and how to start a router for them."
    )
    parser.add_argument("--split", type=split, default=Split(prefill=2, decode=2), help="2P2D unless given")
    parser.add_argument(
        "--aggregated",
        type=int,
        choices=range(65),
        metavar="N",
        help="workers that do both; by default 1 for sglang, whose decode workers cannot prefill, else 0",
    )
    parser.add_argument(
        "--port-base", type=port, default=8100, help="first worker's port, the others follow; 0 for free ones"
    )
    parser.add_argument(
        "--router-config", type=Path, metavar="FILE", help="write the router's configuration here, in JSON"
    )
    add_worker_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run until told to stop, and return the exit code."""
    aggregated = arguments.aggregated
    if aggregated is None:
        aggregated = 1 if arguments.engine == "sglang" else 0
    options = worker_options(arguments, port=arguments.port_base)
    workers = arguments.split.prefill + arguments.split.decode + aggregated
    if options.port + workers - 1 > 65_535:
        raise ArgumentError(f"argument --port-base: {workers} workers need ports up to {options.port + workers - 1}")
    asyncio.run(_serve(arguments.split, options, aggregated, arguments.router_config))
    return 0


def router_document(cluster: EmulatedCluster, options: WorkerOptions) -> dict[str, object]:
    """Return a router's configuration for a running cluster."""
    roles = {"prefill": cluster.prefill, "decode": cluster.decode, "aggregated": cluster.aggregated}
    addresses = {role: [worker.router_address() for worker in workers] for role, workers in roles.items() if workers}
    document: dict[str, object] = {
        "format": "dolphinrouting.dev/router/v1",
        "engine": options.engine,
        "workers": addresses,
    }
    if cluster.notice_endpoint is not None:
        document["notice_endpoint"] = cluster.notice_endpoint
    return document


def router_command(cluster: EmulatedCluster, options: WorkerOptions) -> str | None:
    """Return a command line that starts a router for a running cluster; None when flags cannot say all."""
    if any(set(worker.router_address()) != {"url"} for worker in cluster.workers):
        return None
    words = ["dolphin-router", "serve", "--engine", options.engine]
    for flag, workers in (
        ("--prefill", cluster.prefill),
        ("--decode", cluster.decode),
        ("--aggregated", cluster.aggregated),
    ):
        if workers:
            words += [flag, *(worker.url for worker in workers)]
    return shlex.join(words)


async def _serve(shape: Split, options: WorkerOptions, aggregated: int, config: Path | None) -> None:
    stopped = told_to_stop()
    async with emulated_cluster(shape, options, aggregated=aggregated) as cluster:
        for worker in cluster.workers:
            print(describe(worker))
        text = json.dumps(router_document(cluster, options), indent=2)
        command = router_command(cluster, options)
        if config is not None:
            config.write_text(text + "\n", "utf-8")
            command = shlex.join(["dolphin-router", "serve", "--config", str(config)])
        if command is not None:
            print(f"\nA router for them:\n\n    {command}\n", flush=True)
        else:
            print(
                f"\nA router for them: dolphin-router serve --config FILE, with this in the file:\n\n{text}", flush=True
            )
        await stopped.wait()
