"""The routers that ours is compared with, from PyPI, in an environment of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

REQUIREMENTS: Final = ("vllm-router==0.1.17", "sglang-router==0.3.2")


def peers_environment(folder: Path) -> Path:
    """Return the folder with the peers' programs; the first call installs them.

    Raises:
        subprocess.CalledProcessError: they cannot be installed.
    """
    stamp = folder / "installed"
    if not stamp.exists() or stamp.read_text() != "\n".join(REQUIREMENTS):
        print(f"installing {' and '.join(REQUIREMENTS)} into {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", *REQUIREMENTS], check=True)
        stamp.write_text("\n".join(REQUIREMENTS))
    return folder / "bin"
