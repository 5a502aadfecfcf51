"""Hybrid traffic: ArXiv-like, L-Eval-like and HumanEval-like requests on one arrival process."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from dolphin_sim.workloads import arxiv, humaneval
from dolphin_sim.workloads.arrivals import ArrivalKind
from dolphin_sim.workloads.drafts import BlockIds, Draft
from dolphin_sim.workloads.leval import LevalContent
from dolphin_sim.workloads.open_loop import Content, OpenLoopWorkload
from dolphin_sim.workloads.requests import Floats

_CONTENTS: dict[str, Callable[[np.random.Generator, BlockIds], Content]] = {
    "arxiv": arxiv.TRAFFIC.start,
    "leval": LevalContent,
    "humaneval": humaneval.TRAFFIC.start,
}


class HybridContent:
    """Each request is of one component, drawn independently by its share."""

    def __init__(self, random: np.random.Generator, block_ids: BlockIds, *, shares: Mapping[str, float]) -> None:
        self._random, *randoms = random.spawn(1 + len(shares))
        self._contents = [_CONTENTS[name](state, block_ids) for name, state in zip(shares, randoms, strict=True)]
        # The last bound is left out: a sum of shares just below 1 must not point past the last component.
        self._bounds = np.cumsum(list(shares.values()))[:-1]

    def fill(self, arrival_s: Floats) -> Draft:
        chosen = np.searchsorted(self._bounds, self._random.random(len(arrival_s)), side="right")
        rows = [np.flatnonzero(chosen == index) for index in range(len(self._contents))]
        drafts = [content.fill(arrival_s[own]) for content, own in zip(self._contents, rows, strict=True)]
        labelled = [replace(draft, component=draft.component + index) for index, draft in enumerate(drafts)]
        return Draft.concatenate(labelled).take(np.argsort(np.concatenate(rows)))


def hybrid_workload(*, arrival: ArrivalKind = "poisson", shares: Mapping[str, float] | None = None) -> OpenLoopWorkload:
    """A mix of arxiv, leval and humaneval: a third of the requests each, or the given shares of them, which sum to 1.

    Raises:
        ValueError: an unknown component, a share that is not positive, or a sum other than 1.
    """
    shares = dict.fromkeys(_CONTENTS, 1 / len(_CONTENTS)) if shares is None else dict(shares)
    for name, share in shares.items():
        if name not in _CONTENTS:
            raise ValueError(f"shares: {name!r} is not a component of hybrid traffic ({', '.join(_CONTENTS)})")
        if not share > 0:
            raise ValueError(f"shares: the share of {name} is {share}, not a positive number; leave the component out")
    if not math.isclose(sum(shares.values()), 1.0, abs_tol=1e-6):
        raise ValueError(f"shares: they sum to {sum(shares.values())}, not 1")
    return OpenLoopWorkload(
        name="hybrid",
        component_names=tuple(shares),
        arrival=arrival,
        start_content=partial(HybridContent, shares=shares),
    )
