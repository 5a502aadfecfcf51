"""The command ``dolphin-search``."""

from __future__ import annotations

from collections.abc import Sequence

from dolphin_search.cli import compare, demo, learn, replay
from dolphin_sim.cli.command import run_command


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; see ``run_command``."""
    description = "Learns routing tables and compares them with rules."
    return run_command("dolphin-search", description, (learn, compare, replay, demo), argv)
