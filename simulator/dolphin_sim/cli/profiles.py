"""list the hardware profiles that come with the package"""

from __future__ import annotations

import argparse

from dolphin_sim.hardware import load_profile, profile_names

NAME = "profiles"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare no arguments: the command takes none."""


def run(arguments: argparse.Namespace) -> int:
    """Print each profile's name and where its numbers come from; return the exit code."""
    for name in profile_names():
        print(f"{name}  {load_profile(name).origin}")
    return 0
