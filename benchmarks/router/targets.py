"""The routers that are measured: how each is started, with its features as they are by default."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from peers import peers_environment
from remote_table import save_remote_table

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / "results" / "router"
COMPILED = REPOSITORY / "build" / "compiled"


@dataclass(frozen=True, kw_only=True)
class Ports:
    """All on 127.0.0.1."""

    router: int
    metrics: int
    prefill: int
    decode: int


@dataclass(frozen=True, kw_only=True)
class Target:
    """One router; without a command the load generator itself, which asks both workers: the ceiling."""

    name: str
    command: Callable[[Ports], list[str]] | None
    prepare: Callable[[], object] = lambda: None
    """What must be there before the command can run."""
    environment: Mapping[str, str] = field(default_factory=dict)


def _ours(ports: Ports) -> list[str]:
    return [
        *(str(Path(sys.executable).with_name("dolphin-router")), "serve"),
        *("--host", "127.0.0.1", "--port", str(ports.router)),
        *("--prefill", f"http://127.0.0.1:{ports.prefill}", "--decode", f"http://127.0.0.1:{ports.decode}"),
        *("--engine", "vllm-nixl", "--table", str(RESULTS / "table.json"), "--admin-port", str(ports.metrics)),
    ]


def _vllm_router(ports: Ports) -> list[str]:
    return [
        *(str(RESULTS / "peers" / "bin" / "vllm-router"), "--vllm-pd-disaggregation"),
        *("--prefill", f"http://127.0.0.1:{ports.prefill}", "--decode", f"http://127.0.0.1:{ports.decode}"),
        *("--host", "127.0.0.1", "--port", str(ports.router), "--policy", "round_robin"),
        *("--prometheus-port", str(ports.metrics), "--log-level", "warning", "--worker-startup-check-interval", "1"),
    ]


def _sglang_router(ports: Ports) -> list[str]:
    return [
        *(str(RESULTS / "peers" / "bin" / "python"), "-m", "sglang_router.launch_router", "--pd-disaggregation"),
        *("--prefill", f"http://127.0.0.1:{ports.prefill}", "8998", "--decode", f"http://127.0.0.1:{ports.decode}"),
        *("--host", "127.0.0.1", "--port", str(ports.router), "--policy", "round_robin"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(ports.metrics), "--log-level", "warn"),
        *("--worker-startup-check-interval", "1"),
    ]


def _install_peers() -> None:
    peers_environment(RESULTS / "peers")


def _compile() -> None:
    """Build the data plane as images have it."""
    _write_table()
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["sh", "scripts/compiled.sh", str(COMPILED)], cwd=REPOSITORY, env=environment, check=True)


def _write_table() -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    save_remote_table(RESULTS / "table.json")


TARGETS = {
    target.name: target
    for target in (
        Target(
            name="ours",
            command=_ours,
            prepare=_compile,
            environment={"PYTHONPATH": str(COMPILED)},
        ),
        Target(name="ours-interpreted", command=_ours, prepare=_write_table),
        Target(name="vllm-router", command=_vllm_router, prepare=_install_peers),
        # Without a network it would try for long to fetch a tokenizer.
        Target(
            name="sglang-router", command=_sglang_router, prepare=_install_peers, environment={"HF_HUB_OFFLINE": "1"}
        ),
        Target(name="direct", command=None),
    )
}
