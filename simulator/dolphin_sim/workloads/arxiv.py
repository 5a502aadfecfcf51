"""ArXiv-like traffic: long papers to summarise, no two alike."""

from __future__ import annotations

from dolphin_sim.workloads.arrivals import ArrivalKind
from dolphin_sim.workloads.lengths import LogNormal
from dolphin_sim.workloads.open_loop import OpenLoopWorkload
from dolphin_sim.workloads.single_shot import SingleShotTraffic

# The mean of the prompts is the published one. Their sigma and the answers are our choice: no lengths were published.
TRAFFIC = SingleShotTraffic(
    name="arxiv",
    prompts=LogNormal(8088, sigma=0.5, low=256, high=120_000),
    answers=LogNormal(250, sigma=0.6, low=16, high=2048),
    limit_share=0.5,
    system_prompt_share=0.6,
)


def arxiv_workload(*, arrival: ArrivalKind = "poisson") -> OpenLoopWorkload:
    """Mean prompt 8,088 tokens without reuse, mean answer 250."""
    return OpenLoopWorkload(name="arxiv", component_names=("arxiv",), arrival=arrival, start_content=TRAFFIC.start)
