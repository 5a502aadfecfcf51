"""HumanEval-like traffic: short programming tasks in a constant template."""

from __future__ import annotations

from dolphin_sim.workloads.arrivals import ArrivalKind
from dolphin_sim.workloads.lengths import LogNormal
from dolphin_sim.workloads.open_loop import OpenLoopWorkload
from dolphin_sim.workloads.single_shot import SingleShotTraffic

# Published mean prompt: 198 tokens. The public tasks have 451 characters, about 137 tokens; the template makes up the
# rest. It is shorter than a block, so none of it is reused. The sigmas and the answers are our choice.
TRAFFIC = SingleShotTraffic(
    name="humaneval",
    prompts=LogNormal(137, sigma=0.5, low=24, high=800),
    answers=LogNormal(300, sigma=0.6, low=16, high=2048),
    template_tokens=61,
    limit_share=0.3,
    system_prompt_share=0.95,
)


def humaneval_workload(*, arrival: ArrivalKind = "poisson") -> OpenLoopWorkload:
    """Mean prompt 198 tokens without reuse, mean answer 300."""
    return OpenLoopWorkload(
        name="humaneval", component_names=("humaneval",), arrival=arrival, start_content=TRAFFIC.start
    )
