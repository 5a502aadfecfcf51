"""A build step that compiles the router's data plane with mypyc, when ``DOLPHIN_COMPILE=1`` asks for it.

    DOLPHIN_COMPILE=1 pip wheel --no-deps --no-build-isolation .

Without it the wheel is pure Python and does the same, more slowly. The sources stay in the wheel: they are what a
traceback shows, and what other packages of the wheel import where a module is not compiled. Needs a C compiler, and
the environment of ``make setup`` for the types.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "router/dolphin_router"

COMPILED = (
    "adapters/*.py",
    "exchange/*.py",
    "http/*.py",
    "metrics/*.py",
    "policies/*.py",
    "prefix_index/*.py",
    "assignment.py",
    "candidates.py",
    "completion_request.py",
    "data_plane.py",
    "features.py",
    "fleet.py",
    "output_inputs.py",
    "output_length.py",
    "prompt_reader.py",
    "recorder.py",
    "request_latency.py",
    "routing.py",
    "token_count.py",
    "worker_bits.py",
)
"""What runs for every request. Left out are classes that a library fills by their annotations, which mypyc drops:
``contract`` (pydantic) and ``messages`` (msgspec)."""


class CompiledDataPlane(BuildHookInterface[Any]):
    """Adds compiled modules to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless nobody asked or the installation is editable, where sources change under it."""
        if version == "editable" or os.environ.get("DOLPHIN_COMPILE") != "1":
            return
        # Not needed where nothing is compiled.
        from mypyc.build import mypycify
        from setuptools import Distribution
        from setuptools.command.build_ext import build_ext

        os.chdir(self.root)
        paths = sorted(str(path) for pattern in COMPILED for path in Path(PACKAGE).glob(pattern))
        folder = tempfile.mkdtemp(prefix="compiled-data-plane-")
        command = build_ext(
            Distribution({"name": "dolphin_router", "ext_modules": mypycify(paths, opt_level="3", debug_level="0")})
        )
        command.build_lib = folder
        command.build_temp = f"{folder}/objects"
        command.ensure_finalized()
        command.run()
        for compiled in Path(folder).rglob("*.so"):
            build_data["force_include"][str(compiled)] = str(compiled.relative_to(folder))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
