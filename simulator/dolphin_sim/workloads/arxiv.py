"""ArXiv-like traffic: long papers to summarise, no two alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dolphin_sim.workloads.arrivals import ArrivalKind
from dolphin_sim.workloads.clients import answer_limits, flags, system_hash
from dolphin_sim.workloads.drafts import BlockIds, Draft, single_shot
from dolphin_sim.workloads.lengths import LogNormal
from dolphin_sim.workloads.open_loop import BLOCK_TOKENS, OpenLoopWorkload
from dolphin_sim.workloads.requests import Floats

# The mean of the prompts is the published one. Their sigma and the answers are our choice: no lengths were published.
PROMPTS = LogNormal(8088, sigma=0.5, low=256, high=120_000)
ANSWERS = LogNormal(250, sigma=0.6, low=16, high=2048)
LIMIT_SHARE = 0.5
SYSTEM_PROMPT_SHARE = 0.6


class ArxivContent:
    """Prompts and answers of independent log-normal lengths."""

    def __init__(self, random: np.random.Generator, block_ids: BlockIds) -> None:
        self._random = random
        self._block_ids = block_ids

    def fill(self, arrival_s: Floats) -> Draft:
        random, count = self._random, len(arrival_s)
        answers = ANSWERS.tokens(random, count)
        draft = single_shot(
            arrival_s,
            prompt_tokens=PROMPTS.tokens(random, count),
            output_tokens=answers,
            block_tokens=BLOCK_TOKENS,
            block_ids=self._block_ids,
        )
        return replace(
            draft,
            max_tokens=answer_limits(random, answers, stated_share=LIMIT_SHARE),
            system_hash=flags(random, count, share=SYSTEM_PROMPT_SHARE) * system_hash("arxiv"),
        )


def arxiv_workload(*, arrival: ArrivalKind = "poisson") -> OpenLoopWorkload:
    """Mean prompt 8,088 tokens without reuse, mean answer 250."""
    return OpenLoopWorkload(name="arxiv", component_names=("arxiv",), arrival=arrival, start_content=ArxivContent)
