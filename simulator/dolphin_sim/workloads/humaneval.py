"""HumanEval-like traffic: short programming tasks in a constant template."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dolphin_sim.workloads.arrivals import ArrivalKind
from dolphin_sim.workloads.clients import answer_limits, flags, system_hash
from dolphin_sim.workloads.drafts import BlockIds, Draft, single_shot
from dolphin_sim.workloads.lengths import LogNormal
from dolphin_sim.workloads.open_loop import BLOCK_TOKENS, OpenLoopWorkload
from dolphin_sim.workloads.requests import Floats

# Published mean prompt: 198 tokens. The public tasks have 451 characters, about 137 tokens; the template makes up the
# rest. It is shorter than a block, so none of it is reused. The sigmas and the answers are our choice.
TEMPLATE_TOKENS = 61
TASKS = LogNormal(137, sigma=0.5, low=24, high=800)
ANSWERS = LogNormal(300, sigma=0.6, low=16, high=2048)
LIMIT_SHARE = 0.3
SYSTEM_PROMPT_SHARE = 0.95


class HumanevalContent:
    """Short prompts, answers longer than the prompts."""

    def __init__(self, random: np.random.Generator, block_ids: BlockIds) -> None:
        self._random = random
        self._block_ids = block_ids

    def fill(self, arrival_s: Floats) -> Draft:
        random, count = self._random, len(arrival_s)
        answers = ANSWERS.tokens(random, count)
        draft = single_shot(
            arrival_s,
            prompt_tokens=TEMPLATE_TOKENS + TASKS.tokens(random, count),
            output_tokens=answers,
            block_tokens=BLOCK_TOKENS,
            block_ids=self._block_ids,
        )
        return replace(
            draft,
            max_tokens=answer_limits(random, answers, stated_share=LIMIT_SHARE),
            system_hash=flags(random, count, share=SYSTEM_PROMPT_SHARE) * system_hash("humaneval"),
        )


def humaneval_workload(*, arrival: ArrivalKind = "poisson") -> OpenLoopWorkload:
    """Mean prompt 198 tokens without reuse, mean answer 300."""
    return OpenLoopWorkload(
        name="humaneval", component_names=("humaneval",), arrival=arrival, start_content=HumanevalContent
    )
