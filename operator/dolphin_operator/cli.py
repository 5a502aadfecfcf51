"""The command ``dolphin-operator``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 1, as this release has no controller to run."""
    parser = argparse.ArgumentParser(
        prog="dolphin-operator", description="Keeps RoutingPolicy objects. This release holds no controller yet."
    )
    parser.add_argument("--version", action="version", version=f"dolphin-operator {version('dolphin-routing')}")
    parser.parse_args(argv)
    print("dolphin-operator: this release holds no controller yet; only --version works", file=sys.stderr)
    return 1
