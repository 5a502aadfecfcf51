"""Requests in the making: rows with block ranges in place of block ids, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dolphin_sim.workloads.requests import Floats, Ints, Mask, Requests, offsets_of


class BlockIds:
    """Gives out block ids, each once."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, counts: Ints) -> Ints:
        """int64[n]: the first id of a run of counts[i] ids for each i."""
        starts = self._next + offsets_of(counts)
        self._next = int(starts[-1])
        return starts[:-1]


@dataclass(frozen=True, eq=False, kw_only=True)
class Draft:
    """Columns as in ``Requests``, int64[n] but for the times.

    The blocks of a row are the shared_blocks ids from shared_first on, then ids from own_first on, as many as it takes
    to cover the prompt. That is enough for a document before a question and for a conversation that only grows.
    """

    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    shared_first: Ints
    shared_blocks: Ints
    own_first: Ints
    component: Ints
    max_tokens: Ints
    turns: Ints
    tools: Ints
    json_format: Ints
    system_hash: Ints

    @classmethod
    def concatenate(cls, drafts: Sequence[Self]) -> Self:
        """All rows, in the order of the drafts."""
        columns: dict[str, Any] = {
            field.name: np.concatenate([getattr(draft, field.name) for draft in drafts]) for field in fields(cls)
        }
        return cls(**columns)

    def take(self, rows: NDArray[np.intp] | Mask) -> Self:
        """The rows of an index or a mask."""
        columns: dict[str, Any] = {field.name: getattr(self, field.name)[rows] for field in fields(self)}
        return replace(self, **columns)

    def requests(self, *, block_tokens: int, component_names: tuple[str, ...]) -> Requests:
        """The same rows with block ids, sorted by arrival."""
        draft = self.take(np.argsort(self.arrival_s, kind="stable"))
        blocks = draft.prompt_tokens // block_tokens
        offsets = offsets_of(blocks)
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], blocks)
        shared = np.repeat(draft.shared_blocks, blocks)
        ids = within + np.where(
            within < shared,
            np.repeat(draft.shared_first, blocks),
            np.repeat(draft.own_first - draft.shared_blocks, blocks),
        )
        return Requests(
            arrival_s=draft.arrival_s,
            prompt_tokens=draft.prompt_tokens,
            output_tokens=draft.output_tokens,
            block_offsets=offsets,
            block_ids=ids,
            block_tokens=block_tokens,
            component=draft.component,
            component_names=component_names,
            max_tokens=draft.max_tokens,
            turns=draft.turns,
            tools=draft.tools,
            json_format=draft.json_format,
            system_hash=draft.system_hash,
        )


def single_shot(
    arrival_s: Floats, *, prompt_tokens: Ints, output_tokens: Ints, block_tokens: int, block_ids: BlockIds
) -> Draft:
    """Rows of one turn that share no block and set no option."""
    zeros = np.zeros(len(arrival_s), np.int64)
    return Draft(
        arrival_s=arrival_s,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        shared_first=zeros,
        shared_blocks=zeros,
        own_first=block_ids.take(prompt_tokens // block_tokens),
        component=zeros,
        max_tokens=zeros,
        turns=zeros + 1,
        tools=zeros,
        json_format=zeros,
        system_hash=zeros,
    )
