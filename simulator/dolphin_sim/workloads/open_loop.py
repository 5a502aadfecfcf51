"""Workloads whose requests arrive by a process of their own, whatever the requests are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dolphin_sim.workloads.arrivals import ArrivalKind, arrival_process
from dolphin_sim.workloads.drafts import BlockIds, Draft
from dolphin_sim.workloads.requests import Floats, Requests
from dolphin_sim.workloads.workload import BatchWorkload

BLOCK_TOKENS = 64
"""Block size of all generators."""


class Content(Protocol):
    """What arrives: fills given arrival times with requests, in the state of its own traffic."""

    def fill(self, arrival_s: Floats) -> Draft:
        """One row for each time, in the same order; later calls go on where this one ended."""
        ...


@dataclass(frozen=True, kw_only=True)
class OpenLoopWorkload(BatchWorkload):
    """Arrivals of one kind, filled by a content."""

    name: str
    component_names: tuple[str, ...]
    arrival: ArrivalKind
    start_content: Callable[[np.random.Generator, BlockIds], Content]
    block_tokens: int = BLOCK_TOKENS

    def _batches(self, random: np.random.Generator, rate_per_s: float, batch_s: float) -> Iterator[Requests]:
        arrival_random, content_random = random.spawn(2)
        process = arrival_process(self.arrival, arrival_random, rate_per_s=rate_per_s)
        content = self.start_content(content_random, BlockIds())
        batch = 0
        while True:
            batch += 1
            draft = content.fill(process.until(batch * batch_s))
            yield draft.requests(block_tokens=self.block_tokens, component_names=self.component_names)
