"""Where a candidate table is measured."""

from __future__ import annotations

from dolphin_search.environments.base import Actions, Environment
from dolphin_search.environments.simulated import Arrivals, SimulatedEnvironment

__all__ = ["Actions", "Arrivals", "Environment", "SimulatedEnvironment"]
