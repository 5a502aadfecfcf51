"""Request streams: seeded generators and recorded traces behind one interface."""

from dolphin_sim.workloads.requests import Requests

__all__ = ["Requests"]
