"""The hot loop is compiled from source, also where the router's modules are machine code already."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dolphin_sim.compiled import compiled


class Built:
    """Stands for a function of an extension module: callable, and no function of Python's."""

    __module__ = "arithmetic"
    __name__ = "twice"

    def __call__(self, x: float) -> float:
        raise AssertionError("the source counts")


def test_a_function_of_an_extension_module_is_compiled_from_the_source_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "arithmetic.py").write_text("def twice(x):\n    return 2.0 * x\n")
    module = ModuleType("arithmetic")
    module.__file__ = str(tmp_path / "arithmetic.cpython-311-x86_64-linux-gnu.so")
    monkeypatch.setitem(sys.modules, "arithmetic", module)
    built: Any = Built()
    assert compiled(built)(21.0) == 42.0
