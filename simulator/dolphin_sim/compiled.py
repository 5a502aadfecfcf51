"""Compiling the hot loop.

Functions marked with :func:`compiled` are plain Python over NumPy arrays; numba compiles them on first use.
``NUMBA_DISABLE_JIT=1`` in the environment runs them as they stand, with identical results and about a thousand times
slower: for debugging, and for the test that holds the two equal.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numba.core.config

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile ``function`` on first use, keep the machine code on disk, and release the interpreter lock while it
    runs."""
    config: Any = numba.core.config
    njit: Any = numba.njit
    cache_dir = config.CACHE_DIR
    config.CACHE_DIR = str(_cache_dir())
    try:
        # Without `_nrt` numba counts references to arrays at every call, which took seven eighths of the time. These
        # functions
        # allocate nothing, and what calls them keeps the arrays alive.
        return cast(Function, njit(cache=True, nogil=True, _nrt=False)(function))
    finally:
        config.CACHE_DIR = cache_dir


@cache
def _cache_dir() -> Path:
    """Return a directory of this user that no other version of the compiled sources shares.

    numba looks only at the file of the function it compiles, so a change in a function that is called from there would
    go unnoticed.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "dolphin-routing" / f"compiled-{_source_digest()}"


def _source_digest() -> str:
    digest = hashlib.sha256(f"{sys.version} {numba.__version__}".encode())
    for package in ("dolphin_router", "dolphin_sim"):
        for source in sorted(files(package).iterdir(), key=lambda entry: entry.name):
            _add(digest, source)
    return digest.hexdigest()[:16]


def _add(digest: hashlib._Hash, source: Traversable) -> None:
    if source.is_dir():
        if source.name in {"engine", "rules"}:
            for child in sorted(source.iterdir(), key=lambda entry: entry.name):
                _add(digest, child)
    elif source.name.endswith(".py"):
        digest.update(source.name.encode() + source.read_bytes())
