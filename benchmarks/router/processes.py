"""Processes on chosen cores: starting and ending them, and what they use, from Linux's /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
STOP_LIMIT_S: Final = 5.0

_PARENT, _USER_TICKS, _SYSTEM_TICKS = 1, 11, 12
"""Places in /proc/PID/stat, counted after the name's bracket."""


class ProcessTree:
    """A process and its descendants, found when this object is made."""

    def __init__(self, pid: int) -> None:
        parents: dict[int, int] = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    parents[int(entry)] = int(_stat(int(entry))[_PARENT])
        self.pids = [pid]
        for parent in self.pids:  # grows while it is walked
            self.pids += [child for child, of in parents.items() if of == parent]

    def cpu_s(self) -> float:
        """Return user and system time so far. Counts what ended threads used; not what ended processes did."""
        ticks = 0
        for pid in self.pids:
            with contextlib.suppress(OSError):
                stat = _stat(pid)
                ticks += int(stat[_USER_TICKS]) + int(stat[_SYSTEM_TICKS])
        return ticks / TICKS_PER_S

    def rss_mib(self) -> float:
        """Return resident memory; pages that several of the processes share count for each."""
        pages = 0
        for pid in self.pids:
            with contextlib.suppress(OSError):
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * PAGE_BYTES / 2**20

    def is_alive(self) -> bool:
        """Whether none of the processes has ended."""
        return all(Path(f"/proc/{pid}/statm").exists() for pid in self.pids)


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def machine_busy_s() -> float:
    """Return how long the machine's cores have worked, all together, since it started."""
    user, nice, system, _, _, interrupts, soft_interrupts, *_ = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + interrupts + soft_interrupts) / TICKS_PER_S


def free_ports(count: int) -> list[int]:
    """Return ports on 127.0.0.1 on which nothing listens."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def running(
    command: Sequence[str],
    *,
    core: int | None,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command on one core, or on any, while the context lasts; then end it and all that it started."""
    process = subprocess.Popen(
        command,
        stdout=stdout,
        stderr=stderr,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
        preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
    )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)  # the process leads a session, so a group, of its own
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_LIMIT_S)
            if number is signal.SIGKILL:
                return
