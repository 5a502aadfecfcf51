"""How many tokens a prompt has, without the model's tokenizer.

Prompts of token ids are counted. Of text only the bytes are known, and a few hundred of them drawn at equal steps: they
tell what kind of text it is (how much of it is not ASCII, is ``\\uXXXX`` escapes, is spaces). The tokens that a byte
makes are learned for each model and kind of text from the counts that engines report in ``usage``.
"""

from __future__ import annotations

from bisect import bisect
from typing import Final, NamedTuple

from msgspec import UNSET

from .completion_request import CompletionRequest

LEAST_TOKENS_PER_BYTE: Final = 1 / 16
MOST_TOKENS_PER_BYTE: Final = 1.0
"""A byte-level tokenizer cannot make more tokens than bytes."""
MOST_MODELS: Final = 64
"""Models whose ratios are kept: the one that came first is forgotten for the next."""

_SAMPLED_BYTES = 256
# Up to this length a copy of the prompt is faster to step through than a view of it.
_COPIED_BYTES = 32_768

# How much one request moves a ratio: about the last 50 of a kind count. It counts the less the shorter it is
# than this length; what is further off than the factor counts as if it were just that far off.
_STEP = 0.02
_FULL_WEIGHT_BYTES = 1000.0
_OUTLIER_FACTOR = 2.0

# What a chat template adds to every prompt is learned from short prompts, in which it outweighs the ratio's error.
_SHORT_PROMPT_BYTES = 600
_TEMPLATE_STEP = 0.05
_MOST_TEMPLATE_TOKENS = 2048.0

# Pictures in base64 are told by this mark, which is looked for only in samples that base64 could be the bulk of: ASCII
# with next to no spaces.
_MEDIA_MARK = b";base64,"
_FEWEST_SPACES = 0.03
_MEDIA_STEP = 0.1
_FIRST_MEDIA_TOKENS = 1000.0
_MOST_MEDIA_TOKENS = 32_768.0

_DIGITS = b"0123456789"
_BLANKS = b" \t\r\n"
_ASCII = bytes(range(128))

# A kind of text is a cell of three shares of its bytes. The first rises with the share of non-ASCII bytes, the second
# with that of backslashes of escapes (1/6 in Chinese that is all escapes), the third with that of spaces.
_NON_ASCII_BOUNDS = (0.02, 0.15, 0.4)
_ESCAPE_BOUNDS = (0.02, 0.05, 0.08, 0.11, 0.14)
_SPACE_BOUNDS = (0.1, 0.2)
_ESCAPE_LEVELS = len(_ESCAPE_BOUNDS) + 1
_SPACE_LEVELS = len(_SPACE_BOUNDS) + 1
# Of the four hexadecimal digits of a Chinese character's escape, this many are decimal, on average.
_DECIMALS_OF_ESCAPE = 2.4

# Tokens a byte before anything was learned: 1/4 is the usual guess, and the six bytes of an escape stand for three.
_FIRST_OF_ESCAPE_LEVEL = (0.25, 0.23, 0.2, 0.17, 0.15, 0.13)
_FIRST_TOKENS_PER_BYTE = tuple(
    first for _ in range(len(_NON_ASCII_BOUNDS) + 1) for first in _FIRST_OF_ESCAPE_LEVEL for _ in range(_SPACE_LEVELS)
)


class TokenEstimate(NamedTuple):
    """The length of a prompt, and what it was told from."""

    tokens: int
    """Of all prompts together where the request has several."""
    is_exact: bool
    """Whether the prompt was token ids."""
    model: str
    text_bytes: int
    """JSON that becomes text in the prompt, offered tools and documents included."""
    media: int
    """Pictures and the like in base64."""
    kind: int
    """Which kind of text it is."""


class TokenCounter:
    """Counts prompts, and learns from what engines say they counted."""

    def __init__(self) -> None:
        self._ratios: dict[str, _Ratios] = {}
        self._nothing_learned = _Ratios()

    def estimate(self, request: CompletionRequest) -> TokenEstimate:
        """Return the number of prompt tokens. A prompt of a wrong type is estimated from its bytes like any other."""
        fields = request.fields
        model = fields.model or ""
        prompt = request.prompt
        if prompt is None:
            return TokenEstimate(0, False, model, 0, 0, 0)
        view = memoryview(prompt)
        prompt_bytes = len(view)
        if not request.is_chat and view[0] == _BRACKET:
            counted = _count_token_ids(view.tobytes())
            if counted is not None:
                return TokenEstimate(counted, True, model, prompt_bytes, 0, 0)
        # Escapes repeat every six bytes: with a common factor the same place in each would be seen.
        step = prompt_bytes // _SAMPLED_BYTES | 1
        if step % 3 == 0:
            step += 2
        sample = view.tobytes()[::step] if prompt_bytes <= _COPIED_BYTES else view[::step].tobytes()
        kind, may_hold_media = _kind(sample)
        media, media_bytes = _media(view.tobytes()) if may_hold_media else (0, 0)
        text_bytes = prompt_bytes - media_bytes
        if fields.tools is not UNSET:
            text_bytes += len(memoryview(fields.tools))
        if fields.documents is not UNSET:
            text_bytes += len(memoryview(fields.documents))
        tokens = self._ratios.get(model, self._nothing_learned).tokens(text_bytes, media, kind)
        return TokenEstimate(tokens, False, model, text_bytes, media, kind)

    def learn(self, estimate: TokenEstimate, usage_prompt_tokens: int) -> None:
        """Take in how many tokens the engine counted in the prompt of an estimate.

        Only for requests that an engine answered: a client could name any number of models.
        """
        if estimate.is_exact or estimate.text_bytes < 1 or usage_prompt_tokens < 1:
            return
        ratios = self._ratios.get(estimate.model)
        if ratios is None:
            if len(self._ratios) == MOST_MODELS:
                del self._ratios[next(iter(self._ratios))]
            ratios = self._ratios[estimate.model] = _Ratios()
        ratios.learn(estimate, usage_prompt_tokens)


class _Ratios:
    """What is known of one model."""

    __slots__ = ("_by_kind", "_correction", "_media_tokens", "_seen", "_template_tokens")

    def __init__(self) -> None:
        self._by_kind = list(_FIRST_TOKENS_PER_BYTE)
        self._seen = [0] * len(self._by_kind)
        # Of the first ratios, from all kinds that were seen, for those that were not.
        self._correction = 1.0
        self._template_tokens = 0.0
        self._media_tokens = _FIRST_MEDIA_TOKENS

    def tokens(self, text_bytes: int, media: int, kind: int) -> int:
        return int(self._template_tokens + self._ratio(kind) * text_bytes + self._media_tokens * media + 0.5)

    def learn(self, estimate: TokenEstimate, counted: int) -> None:
        _, _, _, text_bytes, media, kind = estimate
        ratio = self._ratio(kind)
        if media:
            each = (counted - self._template_tokens - ratio * text_bytes) / media
            self._media_tokens += _MEDIA_STEP * (min(max(each, 1.0), _MOST_MEDIA_TOKENS) - self._media_tokens)
            return
        if text_bytes < _SHORT_PROMPT_BYTES:
            rest = min(max(counted - ratio * text_bytes, 0.0), _MOST_TEMPLATE_TOKENS)
            self._template_tokens += _TEMPLATE_STEP * (rest - self._template_tokens)
        measured = (counted - self._template_tokens) / text_bytes
        measured = min(max(measured, ratio / _OUTLIER_FACTOR), ratio * _OUTLIER_FACTOR)
        measured = min(max(measured, LEAST_TOKENS_PER_BYTE), MOST_TOKENS_PER_BYTE)
        weight = min(1.0, (text_bytes / _FULL_WEIGHT_BYTES) ** 2)
        self._seen[kind] = seen = self._seen[kind] + 1
        self._by_kind[kind] = ratio + weight * max(1.0 / (seen + 1), _STEP) * (measured - ratio)
        first = _FIRST_TOKENS_PER_BYTE[kind]
        self._correction += weight * _STEP * (measured / first - self._correction)

    def _ratio(self, kind: int) -> float:
        return self._by_kind[kind] if self._seen[kind] else _FIRST_TOKENS_PER_BYTE[kind] * self._correction


_BRACKET = ord("[")


def _count_token_ids(raw: bytes) -> int | None:
    """Return how many ids a JSON list of ids, or of such lists, holds; none for anything else.

    What is not valid in detail is left to the engine to refuse: only the count matters here.
    """
    structure = raw.translate(None, _DIGITS + _BLANKS)
    commas = structure.count(b",")
    if len(structure) != commas + 2 and structure.translate(None, b"[],"):
        return None
    if commas == 0 and not any(digit in raw for digit in _DIGITS):
        return 0
    return commas + 1


def _kind(sample: bytes) -> tuple[int, bool]:
    """Return the kind of text that a sample is of, and whether there may be media in it."""
    share = 1.0 / len(sample)
    spaces = sample.count(b" ") * share
    kind = bisect(_SPACE_BOUNDS, spaces)
    backslashes = sample.count(b"\\") * share
    if backslashes >= _ESCAPE_BOUNDS[0]:
        # Code and JSON have backslashes without digits.
        digits = (len(sample) - len(sample.translate(None, _DIGITS))) * share
        kind += _SPACE_LEVELS * bisect(_ESCAPE_BOUNDS, min(backslashes, digits / _DECIMALS_OF_ESCAPE))
    if not sample.isascii():
        non_ascii = len(sample.translate(None, _ASCII)) * share
        kind += _SPACE_LEVELS * _ESCAPE_LEVELS * bisect(_NON_ASCII_BOUNDS, non_ascii)
    return kind, kind == 0 and spaces < _FEWEST_SPACES


def _media(prompt: bytes) -> tuple[int, int]:
    """Return how many media a prompt holds in base64, and their bytes."""
    media = media_bytes = 0
    start = prompt.find(_MEDIA_MARK)
    while start >= 0:
        end = prompt.find(b'"', start)
        if end < 0:
            break
        media += 1
        media_bytes += end - start
        start = prompt.find(_MEDIA_MARK, end)
    return media, media_bytes
