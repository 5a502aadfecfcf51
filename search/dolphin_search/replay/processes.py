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
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from dolphin_router.contract import Split
from dolphin_search.replay.schedule import Address

START_LIMIT_S: Final = 30.0
STOP_LIMIT_S: Final = 5.0
_POLL_S: Final = 0.02
_LINES_SHOWN: Final = 8
_HOST: Final = "127.0.0.1"


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


class RunningCluster:
    """A router over emulated workers."""

    def __init__(self, address: Address, engines: RunningProcess, router: RunningProcess) -> None:
        self.address = address
        self._processes = (engines, router)

    def check(self) -> None:
        """See that both processes still run.

        Raises:
            ProcessFailed: one does not.
        """
        for process in self._processes:
            process.check()


@contextmanager
def running_cluster(
    split: Split, *, profile: str, time_scale: float, block_tokens: int, cached_tokens: int, table: Path | None
) -> Iterator[RunningCluster]:
    """Run a router and emulated workers until the context ends.

    Args:
        split: how many workers prefill and decode.
        profile: their hardware.
        time_scale: simulated seconds in a second.
        block_tokens: of the workers' prefix caches.
        cached_tokens: that a worker's prefix cache holds.
        table: that the router decides by; None for always remote.

    Raises:
        ProcessFailed: one of the processes cannot run.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dolphin-search-")))
        config = folder / "router.json"
        words = ["cluster", "--split", str(split), "--profile", profile, "--time-scale", repr(time_scale)]
        words += ["--port-base", "0", "--block-tokens", str(block_tokens), "--router-config", str(config)]
        # Of this version are the events in which a worker tells what its cache holds.
        words += ["--kv-events", "main"]
        engines = RunningProcess("dolphin-sim cluster", "dolphin_sim.cli", words, log=folder / "engines.log")
        stack.callback(engines.stop)
        engines.wait_for(lambda: "A router for them" in engines.output, "ready")
        document = json.loads(config.read_text("utf-8"))
        document |= {
            "explain": True,
            "cached_tokens": cached_tokens,
            "table": None if table is None else str(table.resolve()),
        }
        config.write_text(json.dumps(document), "utf-8")
        words = ["serve", "--config", str(config), "--host", _HOST, "--port", "0", "--admin-port", "0"]
        router = RunningProcess(
            "dolphin-router serve", "dolphin_router.cli", [*words, "--patience-s", "1"], log=folder / "router.log"
        )
        stack.callback(router.stop)
        port = router.wait_for(lambda: _port_in(router.output, "listening"), "listening")
        admin_port = router.wait_for(lambda: _port_in(router.output, "admin port"), "listening")
        router.wait_for(lambda: _all_ready(admin_port), "in touch with all workers")
        yield RunningCluster(Address(_HOST, port), engines, router)


def _port_in(log: str, event: str) -> int | None:
    found = re.search(rf"{event} host=\S+ port=(\d+)", log)
    return None if found is None else int(found[1])


def _all_ready(admin_port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{_HOST}:{admin_port}/status", timeout=1.0) as answer:
            status = json.load(answer)
    except (urllib.error.URLError, OSError, ValueError):
        return False
    return all(worker["ready"] for worker in status["workers"])
