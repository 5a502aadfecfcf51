"""Emulated engines: the engine model of the simulator behind the HTTP of real ones, driven by the wall clock."""

from dolphin_sim.emulator.answers import expected_chat_text, expected_text
from dolphin_sim.emulator.cluster import EmulatedCluster, emulated_cluster
from dolphin_sim.emulator.options import WorkerOptions
from dolphin_sim.emulator.worker import EmulatedWorker, emulated_worker

__all__ = [
    "EmulatedCluster",
    "EmulatedWorker",
    "WorkerOptions",
    "emulated_cluster",
    "emulated_worker",
    "expected_chat_text",
    "expected_text",
]
