"""Emulated workers and a router for them, each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from dolphin_router.contract import Split
from dolphin_search.replay.schedule import Address
from dolphin_sim.hardware import HardwareProfile

START_LIMIT_S: Final = 30.0
STOP_LIMIT_S: Final = 5.0
_POLL_S: Final = 0.02
_LINES_SHOWN: Final = 8
_HOST: Final = "127.0.0.1"

# What the router logs.
_LISTENING: Final = re.compile(r"listening host=\S+ port=(\d+)\s")
_READY: Final = re.compile(r"worker ready worker=")


class ProcessFailed(OSError):
    """A process did not start, or ended before it was told to. The message holds its last lines."""


class RunningProcess:
    """A command of ours in a process of its own. Ctrl-C on the terminal does not reach it: whoever started it stops it.

    Args:
        name: of the command, for messages.
        module: that holds its ``main``.
        words: its arguments.
        log: where its output goes.
    """

    def __init__(self, name: str, module: str, words: list[str], *, log: Path) -> None:
        self._name = name
        self._log = log
        code = f"import sys; from {module} import main; sys.exit(main())"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    @property
    def output(self) -> str:
        """What it has written so far."""
        return self._log.read_text("utf-8", "replace")

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:
        """Poll until a condition is true and return its value.

        Raises:
            ProcessFailed: the process ends first, or it takes too long.
        """
        end_s = time.monotonic() + START_LIMIT_S
        while not (value := condition()):
            self.check()
            if time.monotonic() > end_s:
                raise self._failure(f"not {what} within {START_LIMIT_S:g} s")
            time.sleep(_POLL_S)
        return value

    def check(self) -> None:
        """See that it still runs.

        Raises:
            ProcessFailed: it does not.
        """
        code = self._process.poll()
        if code is not None:
            raise self._failure(f"ended with exit code {code}")

    def stop(self) -> None:
        """Ask it to end, and make it when it does not."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _failure(self, problem: str) -> ProcessFailed:
        lines = self.output.rstrip().splitlines()[-_LINES_SHOWN:]
        said = "".join(f"\n    {line}" for line in lines) or " nothing"
        return ProcessFailed(0, f"{problem}; it wrote:{said}", self._name)


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """A router over emulated workers."""

    split: Split
    profile: HardwareProfile
    time_scale: float
    """Simulated seconds in a second."""
    block_tokens: int
    """Of the workers' prefix caches."""
    table: Path
    """That the router decides by."""


class RunningCluster:
    """Engines and router of a plan, each in a process of its own; starts with the engines."""

    def __init__(self, plan: ClusterPlan, folder: Path, stack: contextlib.ExitStack) -> None:
        self._plan = plan
        self._folder = folder
        self._config = folder / "router.json"
        self._router: RunningProcess | None = None
        profile = folder / "profile.json"
        profile.write_text(plan.profile.model_dump_json(), "utf-8")
        words = ["cluster", "--split", str(plan.split), "--profile", str(profile), "--port-base", "0"]
        words += ["--time-scale", repr(plan.time_scale), "--block-tokens", str(plan.block_tokens)]
        # This version's events tell what each worker's cache holds; the router then knows as much as a simulated one.
        words += ["--kv-events", "main", "--router-config", str(self._config)]
        self._engines = RunningProcess("dolphin-sim cluster", "dolphin_sim.cli", words, log=folder / "engines.log")
        stack.callback(self._engines.stop)

    def start_router(self, stack: contextlib.ExitStack) -> None:
        """Wait for the engines and start the router.

        Raises:
            ProcessFailed: the engines do not run.
        """
        self._engines.wait_for(lambda: "A router for them" in self._engines.output, "ready")
        document = json.loads(self._config.read_text("utf-8"))
        document |= {
            "explain": True,
            # A prompt is cached when it is cached: simulated routers do not look ahead either.
            "kv_events_wait_s": 0,
            "cached_tokens": self._plan.profile.kv_capacity_tokens,
            "table": str(self._plan.table.resolve()),
        }
        self._config.write_text(json.dumps(document), "utf-8")
        words = ["serve", "--config", str(self._config), "--host", _HOST, "--port", "0", "--admin-port", "0"]
        self._router = RunningProcess(
            "dolphin-router serve",
            "dolphin_router.cli",
            [*words, "--patience-s", "1"],
            log=self._folder / "router.log",
        )
        stack.callback(self._router.stop)

    def wait_for_router(self) -> Address:
        """Return where the router listens, once it is in touch with all workers.

        Raises:
            ProcessFailed: it does not run.
        """
        router = self._router
        assert router is not None
        listening = router.wait_for(lambda: _LISTENING.search(router.output), "listening")
        workers = self._plan.split.prefill + self._plan.split.decode
        router.wait_for(lambda: len(_READY.findall(router.output)) >= workers, "in touch with all workers")
        return Address(_HOST, int(listening[1]))

    def check(self) -> None:
        """See that both processes still run.

        Raises:
            ProcessFailed: one does not.
        """
        for process in (self._engines, self._router):
            if process is not None:
                process.check()


@contextmanager
def running_clusters(plans: Sequence[ClusterPlan]) -> Iterator[list[tuple[RunningCluster, Address]]]:
    """Run clusters side by side until the context ends; each comes with its router's address.

    Raises:
        ProcessFailed: one of the processes cannot run.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_terminated_like_interrupted())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dolphin-search-")))
        clusters = []
        for number, plan in enumerate(plans):
            own = folder / str(number)
            own.mkdir()
            clusters.append(RunningCluster(plan, own, stack))
        for cluster in clusters:
            cluster.start_router(stack)
        yield [(cluster, cluster.wait_for_router()) for cluster in clusters]


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does, in order: other processes would outlive it otherwise."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
