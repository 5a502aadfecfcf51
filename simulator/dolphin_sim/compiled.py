"""Compiling the hot loop.

Functions marked with :func:`compiled` or :func:`compiled_inside` are plain Python over NumPy arrays; numba compiles
them on first use, which takes some 15 s, and keeps the machine code on disk. ``NUMBA_DISABLE_JIT=1`` in the environment
runs them as they stand, with identical results and about a thousand times slower: for debugging, and for the test that
holds the two equal.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
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

# Where the compiled functions are: this module, the packages of the engine, and the router's code that they share.
_SOURCES = {
    "dolphin_sim": ("compiled.py", "engine", "rules"),
    "dolphin_router": ("assignment.py", "candidates.py", "features.py"),
}


def compiled(function: Function) -> Function:
    """Compile ``function`` on first use, keep the machine code on disk, and release the interpreter lock while it
    runs."""
    return _compiled(function)


def compiled_inside(function: Function) -> Function:
    """The same for a function that only compiled functions call.

    It compiles sooner, since it has no wrapper for calls from Python. Called from there it crashes the interpreter,
    unless compilation is switched off.
    """
    return _compiled(function, no_cpython_wrapper=True)


def _compiled(function: Function, **options: bool) -> Function:
    if not inspect.isfunction(function):
        function = _from_source(function)
    config: Any = numba.core.config
    njit: Any = numba.njit
    cache_dir = config.CACHE_DIR
    config.CACHE_DIR = str(_cache_dir())
    try:
        # With `_nrt` numba counts references to arrays at every call, which took seven eighths of the time. These
        # functions allocate nothing, and what calls them keeps the arrays alive. No C code calls them either.
        decorate = njit(cache=True, nogil=True, _nrt=False, no_cfunc_wrapper=True, **options)
        return cast(Function, decorate(function))
    finally:
        config.CACHE_DIR = cache_dir


def _from_source(function: Function) -> Function:
    """Return a function of a module that is machine code already, as the router's may be, from the source beside it."""
    built = sys.modules[function.__module__]
    source = Path(str(built.__file__)).with_name(f"{built.__name__.rpartition('.')[2]}.py")
    spec = importlib.util.spec_from_file_location(built.__name__, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast(Function, getattr(module, function.__name__))


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
    for package, names in _SOURCES.items():
        for name in names:
            _add(digest, files(package) / name)
    return digest.hexdigest()[:16]


def _add(digest: hashlib._Hash, source: Traversable) -> None:
    if source.is_dir():
        for child in sorted(source.iterdir(), key=lambda entry: entry.name):
            _add(digest, child)
    elif source.name.endswith(".py"):
        digest.update(source.name.encode() + source.read_bytes())
