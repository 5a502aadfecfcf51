"""Several router processes on one port, with one admin port that speaks for all.

The first process only forks, waits and passes signals on: without an event loop of its own it can fork at any time.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from .options import Options

logger = logging.getLogger(__name__)

RESTART_PAUSE_S = 1.0
"""Between the death of a process and its successor, so that one that dies at once does not keep the machine busy."""

BAD_START_S = 2.0
"""A process that fails this soon after the first start has met something that trying again will not mend."""


class Child(NamedTuple):
    """What one of several processes is told by the first."""

    port: int
    """To listen on, shared by all."""
    admin_sockets: tuple[Path, ...]
    """Unix sockets of all routers' admin ports."""
    place: int
    """Of this router; equal to the number of routers in the process that serves the common admin port."""
    lifeline: int
    """File descriptor that reads as ended when the first process is gone."""


def run_processes(options: Options, serve: Callable[[Child], int], administer: Callable[[Child], int]) -> int:
    """Run ``options.processes`` routers until SIGTERM or SIGINT, and return the worst of their exit codes.

    Args:
        options: addresses and the number of processes.
        serve: runs one router and returns its exit code.
        administer: runs the common admin port and returns its exit code.

    Raises:
        OSError: the address cannot be used.
    """
    # Held for as long as the processes run: it settles the number where any free port will do.
    with socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET) as placeholder:
        placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # As servers do: connections that ended a moment ago do not keep the address.
        placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            placeholder.bind((options.host, options.port))
        except OSError as error:
            raise OSError(error.errno, f"{options.host} port {options.port}: {error.strerror}") from error
        port: int = placeholder.getsockname()[1]
        with tempfile.TemporaryDirectory(prefix="dolphin-router-") as folder:
            return _Processes(options.processes, port, Path(folder), serve, administer).run()


class _Processes:
    def __init__(
        self,
        count: int,
        port: int,
        folder: Path,
        serve: Callable[[Child], int],
        administer: Callable[[Child], int],
    ) -> None:
        self._runs = [serve] * count + [administer]
        self._port = port
        self._sockets = tuple(folder / f"{index}.sock" for index in range(count))
        self._children: dict[int, int] = {}
        """Process id to index."""
        self._lifeline, self._held = os.pipe()
        self._stops = 0

    def run(self) -> int:
        started_s = time.monotonic()
        worst = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        for index in range(len(self._runs)):
            self._fork(index)
        while self._children:
            child, status = os.wait()
            index = self._children.pop(child)
            code = abs(os.waitstatus_to_exitcode(status))
            if self._is_stopping:
                worst = max(worst, code)
            elif time.monotonic() - started_s < BAD_START_S:
                logger.error("a process ended at its start: stopping code=%d", code)
                worst = max(worst, code, 1)
                self._stop(signal.SIGTERM, None)
            else:
                logger.error("a process ended, another one takes its place code=%d", code)
                time.sleep(RESTART_PAUSE_S)
                if not self._is_stopping:
                    self._fork(index)
        return worst

    def _fork(self, index: int) -> None:
        child = os.fork()
        if child:
            self._children[child] = index
            return
        code = 1
        try:
            os.close(self._held)
            # A terminal's Ctrl-C is for the first process, which passes it on once.
            os.setpgid(0, 0)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            code = self._runs[index](Child(self._port, self._sockets, index, self._lifeline))
        except (OSError, ValueError) as error:
            logger.error("a process cannot run: %s", error)
        finally:
            # Nothing of the first process's, such as its temporary folder, is for a child to clean up.
            os._exit(code)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Ask all to end; the second time, to cut what is under way; then make them."""
        self._stops += 1
        for child in list(self._children):
            os.kill(child, signal.SIGTERM if self._stops <= 2 else signal.SIGKILL)

    @property
    def _is_stopping(self) -> bool:
        return self._stops > 0
