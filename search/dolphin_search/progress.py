"""Progress of long work: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 5.0


@contextmanager
def progress(console: Console, description: str, total: int) -> Iterator[Callable[[], None]]:
    """Show how far a piece of work is; yields what is to be called after each of ``total`` steps, from any thread."""
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(description, total=total)
            yield lambda: bar.advance(task)
        return
    lines = _Lines(console, description, total)
    yield lines.step
    lines.end()


class _Lines:
    def __init__(self, console: Console, description: str, total: int) -> None:
        self._console = console
        self._description = description
        self._total = total
        self._done = 0
        self._last_s = time.monotonic()
        self._lock = threading.Lock()

    def step(self) -> None:
        with self._lock:
            self._done += 1
            now_s = time.monotonic()
            if now_s - self._last_s >= SECONDS_BETWEEN_LINES:
                self._last_s = now_s
                self._print()

    def end(self) -> None:
        self._print()

    def _print(self) -> None:
        self._console.print(f"{self._description}: {self._done}/{self._total}", highlight=False)
