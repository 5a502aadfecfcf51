"""The command ``dolphin-sim``."""

from __future__ import annotations

from collections.abc import Sequence

from dolphin_sim.cli import cluster, engine, profiles, run, workloads
from dolphin_sim.cli.command import run_command


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; see ``run_command``."""
    description = "Simulates a cluster of prefill and decode workers."
    return run_command("dolphin-sim", description, (run, profiles, workloads, engine, cluster), argv)
