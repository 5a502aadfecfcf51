"""Workloads of conversations: prompts that grow turn by turn behind a shared system prompt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dolphin_sim.workloads.arrivals import ArrivalKind, arrival_process
from dolphin_sim.workloads.clients import answer_limits, flags, system_hash
from dolphin_sim.workloads.drafts import BlockIds, Draft
from dolphin_sim.workloads.lengths import Counts, Lengths, LogNormal
from dolphin_sim.workloads.open_loop import BLOCK_TOKENS
from dolphin_sim.workloads.requests import Floats, Ints, Requests, offsets_of
from dolphin_sim.workloads.workload import BatchWorkload

# A turn cannot follow before the last answer is there; how long that takes is the simulator's to say, so a nominal time
# for each answer token stands for it (our choice, a comfortable TPOT).
ANSWER_S_PER_TOKEN = 0.02


@dataclass(frozen=True, kw_only=True)
class SessionShape:
    """What the conversations of a workload are like."""

    turns: Counts
    system_tokens: tuple[int, ...]
    """Length of each system prompt; the k-th is used in proportion to 1/k."""
    first_turns: Lengths
    later_turns: Lengths
    answers: Lengths
    pauses_s: LogNormal
    """From the end of an answer to the next turn."""
    limit_share: float
    tools_share: float
    json_share: float

    @property
    def longest_s(self) -> float:
        """No session lasts longer."""
        return (self.turns.most - 1) * (self.pauses_s.high + self.answers.high * ANSWER_S_PER_TOKEN)


class Sessions:
    """Lays out whole conversations from their start times on."""

    def __init__(self, random: np.random.Generator, block_ids: BlockIds, *, name: str, shape: SessionShape) -> None:
        self._random = random
        self._block_ids = block_ids
        self._shape = shape
        self._system_tokens = np.array(shape.system_tokens, np.int64)
        self._system_first_id = block_ids.take(self._system_tokens // BLOCK_TOKENS)
        self._system_hashes = np.array([system_hash(f"{name} {index}") for index in range(len(shape.system_tokens))])
        popularity = 1 / np.arange(1, len(shape.system_tokens) + 1)
        self._system_bounds = np.cumsum(popularity / popularity.sum())[:-1]

    def begin(self, start_s: Floats) -> Draft:
        """All turns of a session for each start time; rows in the order of sessions and turns."""
        random, shape = self._random, self._shape
        turns = shape.turns.sample(random, len(start_s))
        first = offsets_of(turns)
        count = int(first[-1])
        session = np.repeat(np.arange(len(turns)), turns)
        turn = np.arange(count) - first[:-1][session]

        answers = shape.answers.tokens(random, count)
        later = shape.later_turns.tokens(random, count)
        added = np.where(turn == 0, shape.first_turns.tokens(random, count), later)
        system = np.searchsorted(self._system_bounds, random.random(len(turns)), side="right")[session]
        prompts = self._system_tokens[system] + added + _sum_before(added + answers, first, session)
        steps_s = answers * ANSWER_S_PER_TOKEN + shape.pauses_s.values(random, count)

        # The chain of a session runs on through its turns: block i of any turn is the same block of the conversation.
        shared_blocks = self._system_tokens[system] // BLOCK_TOKENS
        last = first[1:] - 1
        own_first = self._block_ids.take(prompts[last] // BLOCK_TOKENS - shared_blocks[last])[session]
        return Draft(
            arrival_s=start_s[session] + _sum_before(steps_s, first, session),
            prompt_tokens=prompts,
            output_tokens=answers,
            shared_first=self._system_first_id[system],
            shared_blocks=shared_blocks,
            own_first=own_first,
            component=np.zeros(count, np.int64),
            max_tokens=answer_limits(random, answers, stated_share=shape.limit_share),
            turns=turn + 1,
            tools=flags(random, count, share=shape.tools_share),
            json_format=flags(random, count, share=shape.json_share),
            system_hash=self._system_hashes[system],
        )


@dataclass(frozen=True, kw_only=True)
class SessionWorkload(BatchWorkload):
    """Conversations that begin by an arrival process; their later turns follow in their own time.

    The rate is that of requests: conversations begin at the rate divided by their mean number of turns. The first begin
    one longest conversation before time 0, so that the window opens on traffic in its steady state.
    """

    name: str
    arrival: ArrivalKind
    shape: SessionShape
    block_tokens: int = BLOCK_TOKENS

    def _batches(self, random: np.random.Generator, rate_per_s: float, batch_s: float) -> Iterator[Requests]:
        arrival_random, session_random = random.spawn(2)
        process = arrival_process(
            self.arrival,
            arrival_random,
            rate_per_s=rate_per_s / self.shape.turns.mean,
            start_s=-self.shape.longest_s,
        )
        sessions = Sessions(session_random, BlockIds(), name=self.name, shape=self.shape)
        coming = sessions.begin(process.until(0.0))
        coming = coming.take(coming.arrival_s >= 0)
        batch = 0
        while True:
            batch += 1
            coming = Draft.concatenate([coming, sessions.begin(process.until(batch * batch_s))])
            due = coming.arrival_s < batch * batch_s
            yield coming.take(due).requests(block_tokens=self.block_tokens, component_names=(self.name,))
            coming = coming.take(~due)


def _sum_before(values: Ints | Floats, first: Ints, session: Ints) -> Any:
    """For each row, the sum of the values of earlier rows of its session, in the type of the values."""
    total = np.cumsum(values) - values
    return total - total[first[:-1]][session]
