"""Noticing that a file has changed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

INTERVAL_S = 0.25
"""A look costs some 2 µs. Notification by the kernel would miss the way in which a mounted ConfigMap is swapped: by a
link two folders up."""

_State = tuple[int, int, int] | None


class FileWatch:
    """Looks at a file every so often and tells when it is another than before, or gone."""

    def __init__(self, path: Path, on_change: Callable[[], None], *, interval_s: float = INTERVAL_S) -> None:
        """Begin, from the file as it is now. Needs a running event loop."""
        self._path = path
        self._on_change = on_change
        self._interval_s = interval_s
        self._state = _state(path)
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def close(self) -> None:
        """Stop."""
        self._task.cancel()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            state = _state(self._path)
            if state != self._state:
                self._state = state
                self._on_change()


def _state(path: Path) -> _State:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
