"""How many simulated seconds the simulator runs in a second on one core.

    python benchmarks/simulator.py [--json]

A saturated cluster of h20x4-72b workers under Hybrid traffic. What limits it is the prefix cache: every block of a
prompt is looked up on every worker, inserted and let go of again, so the rate falls with the prompts' lengths and the
number of workers; events come second.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np

from dolphin_router.contract import Split
from dolphin_sim.engine.routing import BITS_BY_CENTRE, OUR_CHOICE, Decider
from dolphin_sim.hardware import load_profile
from dolphin_sim.policy import Policy, always_remote
from dolphin_sim.simulation import Cluster, Simulation
from dolphin_sim.workloads import workload_by_name

LEAST_SIMULATED_S_PER_WALL_S = 10_000
DURATION_S = 20_000.0
REPEATS = 3
CASES = {"2P2D": 1.28, "3P1D": 1.86, "16P16D": 10.0}


def table_policy() -> Policy:
    """Return a table of eight clusters whose centres lie in the middle of Hybrid traffic."""
    random = np.random.default_rng(0)
    clusters = np.zeros((8, 15))
    clusters[:, :4] = random.normal(size=(8, 4))
    transform = np.array([[8.0, 7.0, 7.0, 4.5], [2.0, 2.0, 2.0, 1.0]])
    decider = Decider(BITS_BY_CENTRE, OUR_CHOICE, np.zeros(4), transform, clusters, np.array([1, 0, 1, 1, 0, 1, 1, 1]))
    return Policy("table of 8 clusters", decider)


def measure(split: str, rate_per_s: float, policy: Policy, duration_s: float) -> tuple[float, float]:
    """Return simulated seconds and events in a second of wall time, the best of some repeats."""
    requests = workload_by_name("hybrid").episode(rate_per_s=rate_per_s, duration_s=duration_s, seed=0, part="train")
    cluster = Cluster(load_profile("h20x4-72b"), Split.parse(split))
    best_s, events = float("inf"), 0
    for _ in range(REPEATS + 1):  # the first warms up
        simulation = Simulation(cluster, policy, block_tokens=requests.block_tokens)
        simulation.offer(requests)
        began = time.perf_counter()
        simulation.advance(duration_s)
        best_s, events = min(best_s, time.perf_counter() - began), simulation.events
    return duration_s / best_s, events / best_s


def main() -> int:
    """Measure, print, and return 1 when it is too slow."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    table_rate, table_events = measure("2P2D", CASES["2P2D"], table_policy(), DURATION_S)
    remote_rate, _ = measure("2P2D", CASES["2P2D"], always_remote(), DURATION_S)
    result = {
        "simulated_s_per_wall_s": round(table_rate),
        "events_per_wall_s": round(table_events),
        "always_remote_simulated_s_per_wall_s": round(remote_rate),
        "3p1d_simulated_s_per_wall_s": round(measure("3P1D", CASES["3P1D"], table_policy(), DURATION_S)[0]),
        "16p16d_simulated_s_per_wall_s": round(measure("16P16D", CASES["16P16D"], table_policy(), DURATION_S / 10)[0]),
    }
    if arguments.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:40s} {value:>10,}")
        print((__doc__ or "").rpartition("\n\n")[2].strip())
    return 0 if table_rate >= LEAST_SIMULATED_S_PER_WALL_S else 1


if __name__ == "__main__":
    sys.exit(main())
