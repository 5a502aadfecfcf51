"""Where people read progress and results."""

from __future__ import annotations

from rich.console import Console

LOG_WIDTH = 120


def progress_console() -> Console:
    """Return a console on standard error: bars on a terminal, lines in a log."""
    return _console(to_stderr=True)


def result_console() -> Console:
    """Return a console on standard output, wide enough for the tables where that is no terminal."""
    return _console(to_stderr=False)


def _console(*, to_stderr: bool) -> Console:
    console = Console(stderr=to_stderr)
    return console if console.is_terminal else Console(stderr=to_stderr, width=LOG_WIDTH)
