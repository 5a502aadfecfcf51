"""How long an answer will probably be, guessed from a request without its text."""

from __future__ import annotations

import hashlib
from math import inf, log1p
from typing import NamedTuple

from .contract import PROMPT_BUCKETS, OutputModel


class OutputInputs(NamedTuple):
    """What the classifier may know of a request."""

    prompt_tokens: int
    max_tokens: int | None
    """The client's limit on the answer; none where it set no limit."""
    turns: int
    """Messages of users and tools in the conversation."""
    has_tools: bool
    json_response: bool
    """Whether the client asks for JSON, by schema or not."""
    system_prompt_bucket: int | None
    """Made by :func:`system_prompt_bucket`; none without a system prompt."""

    def vector(self) -> tuple[float, ...]:
        """Return the inputs as numbers, in the order of ``contract.INPUT_NAMES``."""
        buckets = [0.0] * PROMPT_BUCKETS
        if self.system_prompt_bucket is not None:
            buckets[self.system_prompt_bucket] = 1.0
        return (
            log1p(self.prompt_tokens),
            log1p(self.max_tokens or 0),
            0.0 if self.max_tokens is None else 1.0,
            log1p(self.turns),
            1.0 if self.has_tools else 0.0,
            1.0 if self.json_response else 0.0,
            *buckets,
        )


def system_prompt_bucket(system_prompt: str, *, key: bytes) -> int:
    """Return which of the buckets a system prompt falls into.

    Keyed, so that nobody without the key (at most 64 bytes) can tell from a bucket which prompt it was.
    """
    text = system_prompt.encode(errors="surrogatepass")
    digest = hashlib.blake2b(text, digest_size=8, key=key).digest()
    return int.from_bytes(digest, "big") % PROMPT_BUCKETS


class OutputLengthModel:
    """The table's output model, ready to be asked."""

    def __init__(self, model: OutputModel) -> None:
        # With the transform folded into the weights, a guess is one dot product for each class.
        self._rows: list[tuple[float, ...]] = []
        for intercept, weights in zip(model.intercepts, model.weights, strict=True):
            row = [weight / scale for weight, scale in zip(weights, model.scale, strict=True)]
            folded = sum(weight * mean for weight, mean in zip(row, model.mean, strict=True))
            self._rows.append((intercept - folded, *row))
        self._representative_tokens = tuple(entry.representative_tokens for entry in model.classes)

    def predict(self, inputs: OutputInputs) -> int:
        """Return the index of the likeliest class: the first of equally likely ones."""
        # The dot product with `inputs.vector()`, most of which is zeros and ones.
        prompt_tokens, max_tokens, turns, has_tools, json_response, bucket = inputs
        log_prompt_tokens = log1p(prompt_tokens)
        log_max_tokens = 0.0 if max_tokens is None else log1p(max_tokens)
        log_turns = log1p(turns)
        best = 0
        best_score = -inf
        for index, row in enumerate(self._rows):
            score = row[0] + row[1] * log_prompt_tokens + row[4] * log_turns
            if max_tokens is not None:
                score += row[2] * log_max_tokens + row[3]
            if has_tools:
                score += row[5]
            if json_response:
                score += row[6]
            if bucket is not None:
                score += row[7 + bucket]
            if score > best_score:
                best = index
                best_score = score
        return best

    def representative_tokens(self, index: int) -> float:
        """Return the length that stands for the class with this index."""
        return self._representative_tokens[index]
