"""L-Eval-like traffic: several questions on each of a few long documents that are open at the same time.

Every request picks one of OPEN_DOCUMENTS documents at random and asks its next question; after its last question a
document gives its place to a new one. Two questions on a document are thus OPEN_DOCUMENTS requests apart on average:
half a minute at 0.5 requests/s, and about 200,000 tokens of other documents, which fit the memory of a 4-GPU worker.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from dolphin_sim.workloads.arrivals import ArrivalKind
from dolphin_sim.workloads.clients import answer_limits, flags, system_hash
from dolphin_sim.workloads.drafts import BlockIds, Draft
from dolphin_sim.workloads.lengths import Counts, LogNormal
from dolphin_sim.workloads.open_loop import BLOCK_TOKENS, OpenLoopWorkload
from dolphin_sim.workloads.requests import Floats, Ints

# Published: mean prompt 19,019 tokens, over 80 % of it cached. The public tasks have 1 to 19 questions a document, 4.9
# on average. With equally long documents 79.6 % of the tokens at most are seen before, so documents with more questions
# are longer here by a weak power of their number; the public tasks come to 80.7 %. The rest is our choice.
MEAN_PROMPT_TOKENS = 19_019
QUESTIONS = Counts(4.9, most=19)
LENGTH_POWER = 0.2
DOCUMENT_SPREAD = LogNormal(1.0, sigma=0.5, low=0.05, high=6.0)
QUESTION_LENGTHS = LogNormal(60, sigma=0.6, low=8, high=400)
OPEN_DOCUMENTS = 16

# Half of the documents have closed questions (letters, numbers, names), half ask for prose; 90 tokens on average.
CLOSED_SHARE = 0.5
CLOSED_ANSWERS = LogNormal(20, sigma=0.7, low=2, high=256)
PROSE_ANSWERS = LogNormal(160, sigma=0.8, low=8, high=1024)
LIMIT_SHARE = 0.7
SYSTEM_PROMPT_SHARE = 0.9
CLOSED_JSON_SHARE = 0.2


def _one_question_document_tokens() -> float:
    """Mean tokens of a document with one question, such that the mean prompt is MEAN_PROMPT_TOKENS."""
    requests = QUESTIONS.shares * QUESTIONS.numbers
    relative_length = (requests @ QUESTIONS.numbers**LENGTH_POWER) / requests.sum()
    return float((MEAN_PROMPT_TOKENS - QUESTION_LENGTHS.mean) / relative_length)


ONE_QUESTION_DOCUMENT_TOKENS = _one_question_document_tokens()


class LevalContent:
    """A pool of open documents, each with the number of questions still to be asked."""

    def __init__(
        self, random: np.random.Generator, block_ids: BlockIds, *, open_documents: int = OPEN_DOCUMENTS
    ) -> None:
        self._random = random
        self._block_ids = block_ids
        # As in traffic that has run for long: documents with many questions are met more often, at any question.
        questions = QUESTIONS.sample_open(random, open_documents)
        self._left = questions - random.integers(0, questions)
        self._tokens, self._first_id, self._closed = self._new_documents(questions)

    def fill(self, arrival_s: Floats) -> Draft:
        random, count = self._random, len(arrival_s)
        document_tokens, first_id, closed = self._next_documents(random.integers(0, len(self._left), count))
        answers = np.where(closed, CLOSED_ANSWERS.tokens(random, count), PROSE_ANSWERS.tokens(random, count))
        prompts = document_tokens + QUESTION_LENGTHS.tokens(random, count)
        shared_blocks = document_tokens // BLOCK_TOKENS
        prompt_names = np.where(closed, system_hash("leval closed"), system_hash("leval prose"))
        zeros = np.zeros(count, np.int64)
        return Draft(
            arrival_s=arrival_s,
            prompt_tokens=prompts,
            output_tokens=answers,
            shared_first=first_id,
            shared_blocks=shared_blocks,
            own_first=self._block_ids.take(prompts // BLOCK_TOKENS - shared_blocks),
            component=zeros,
            max_tokens=answer_limits(random, answers, stated_share=LIMIT_SHARE),
            turns=zeros + 1,
            tools=zeros,
            json_format=flags(random, count, share=CLOSED_JSON_SHARE) * closed,
            system_hash=flags(random, count, share=SYSTEM_PROMPT_SHARE) * prompt_names,
        )

    def _next_documents(self, places: Ints) -> tuple[Ints, Ints, NDArray[np.bool_]]:
        """Tokens, first block id and kind of the document that each request asks about, given its place in the pool."""
        # Documents are numbered: the open ones by their place, then a new one for each request, few of which are used.
        pool, count = len(self._left), len(places)
        questions = QUESTIONS.sample(self._random, count)
        document = np.zeros(count, np.int64)
        current = np.arange(pool)
        for place in range(pool):
            rows = np.flatnonzero(places == place)
            numbers = np.concatenate([[place], pool + rows])
            used_up_after = self._left[place] + np.concatenate([[0], np.cumsum(questions[rows])])
            # One more than the requests: the document that the next request at this place will ask about.
            chosen = np.searchsorted(used_up_after, np.arange(len(rows) + 1), side="right")
            document[rows] = numbers[chosen[:-1]]
            current[place] = numbers[chosen[-1]]
            self._left[place] = used_up_after[chosen[-1]] - len(rows)

        used = np.union1d(document, current)
        opened = used[used >= pool]
        tokens, first_id, closed = self._new_documents(questions[opened - pool])
        known = np.concatenate([np.arange(pool), opened])
        tokens = np.concatenate([self._tokens, tokens])
        first_id = np.concatenate([self._first_id, first_id])
        closed = np.concatenate([self._closed, closed])
        kept = np.searchsorted(known, current)
        self._tokens, self._first_id, self._closed = tokens[kept], first_id[kept], closed[kept]
        asked = np.searchsorted(known, document)
        return tokens[asked], first_id[asked], closed[asked]

    def _new_documents(self, questions: Ints) -> tuple[Ints, Ints, NDArray[np.bool_]]:
        spread = DOCUMENT_SPREAD.values(self._random, len(questions))
        tokens = np.rint(ONE_QUESTION_DOCUMENT_TOKENS * questions**LENGTH_POWER * spread).astype(np.int64)
        closed = self._random.random(len(questions)) < CLOSED_SHARE
        return tokens, self._block_ids.take(tokens // BLOCK_TOKENS), closed


def leval_workload(*, arrival: ArrivalKind = "poisson", open_documents: int = OPEN_DOCUMENTS) -> OpenLoopWorkload:
    """Mean prompt 19,019 tokens, over 80 % of them seen before; mean answer 90."""
    return OpenLoopWorkload(
        name="leval",
        component_names=("leval",),
        arrival=arrival,
        start_content=partial(LevalContent, open_documents=open_documents),
    )
