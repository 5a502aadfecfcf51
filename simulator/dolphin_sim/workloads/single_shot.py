"""Requests that have nothing to do with each other."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dolphin_sim.workloads.clients import answer_limits, flags, system_hash
from dolphin_sim.workloads.drafts import BlockIds, Draft, single_shot
from dolphin_sim.workloads.lengths import LogNormal
from dolphin_sim.workloads.open_loop import BLOCK_TOKENS
from dolphin_sim.workloads.requests import Floats


@dataclass(frozen=True, kw_only=True)
class SingleShotTraffic:
    """Prompts and answers of independent log-normal lengths, with what their clients state."""

    name: str
    prompts: LogNormal
    answers: LogNormal
    template_tokens: int = 0
    """Added to each prompt."""
    limit_share: float
    """Of the requests that limit their answer."""
    system_prompt_share: float

    def start(self, random: np.random.Generator, block_ids: BlockIds) -> SingleShotContent:
        """Return the content of a workload with this traffic."""
        return SingleShotContent(self, random, block_ids)


class SingleShotContent:
    """The requests of such traffic."""

    def __init__(self, traffic: SingleShotTraffic, random: np.random.Generator, block_ids: BlockIds) -> None:
        self._traffic = traffic
        self._random = random
        self._block_ids = block_ids

    def fill(self, arrival_s: Floats) -> Draft:
        """See ``Content.fill``."""
        traffic, random, count = self._traffic, self._random, len(arrival_s)
        answers = traffic.answers.tokens(random, count)
        draft = single_shot(
            arrival_s,
            prompt_tokens=traffic.template_tokens + traffic.prompts.tokens(random, count),
            output_tokens=answers,
            block_tokens=BLOCK_TOKENS,
            block_ids=self._block_ids,
        )
        return replace(
            draft,
            max_tokens=answer_limits(random, answers, stated_share=traffic.limit_share),
            system_hash=flags(random, count, share=traffic.system_prompt_share) * system_hash(traffic.name),
        )
