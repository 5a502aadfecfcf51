"""What an emulated engine answers: words that depend on the prompt and their place alone.

So every worker gives the same answer to the same prompt, and whoever knows the prompt can tell whether an answer that
came through a router is whole and in order.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from dolphin_sim.emulator.tokens import tokenize

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_DIGEST_BYTES = 64
_WORD_BYTES = 2
_WORDS_IN_DIGEST = _DIGEST_BYTES // _WORD_BYTES
_LEAST_NATURAL_TOKENS = 16
_NATURAL_TOKENS_SPREAD = 112


def prompt_digest(prompt: Sequence[int]) -> bytes:
    """Return what an answer is made from, for a prompt of tokens."""
    return hashlib.blake2b(struct.pack(f"<{len(prompt)}I", *prompt), digest_size=32).digest()


def natural_tokens(digest: bytes) -> int:
    """Return how long the answer is when nothing but its own end stops it."""
    return _LEAST_NATURAL_TOKENS + int.from_bytes(digest[:4], "big") % _NATURAL_TOKENS_SPREAD


class Answer:
    """The tokens of one choice, made as they are asked for.

    Args:
        digest: of the prompt, see :func:`prompt_digest`.
        choice: number of the choice, from 0: with ``n`` above 1 the choices differ.
    """

    def __init__(self, digest: bytes, choice: int = 0) -> None:
        self._seed = digest + choice.to_bytes(4, "big")
        self._number = -1
        self._words: list[str] = []

    def word(self, place: int) -> str:
        """Return the text of the token at ``place``, counted from 0: a space and three letters."""
        number, at = divmod(place, _WORDS_IN_DIGEST)
        if number != self._number:
            digest = hashlib.blake2b(self._seed + number.to_bytes(4, "big"), digest_size=_DIGEST_BYTES).digest()
            self._words = [_word(value) for (value,) in struct.iter_unpack(">H", digest)]
            self._number = number
        return self._words[at]

    def text(self, start: int, stop: int) -> str:
        """Return the text of the tokens from ``start`` to before ``stop``."""
        return "".join(self.word(place) for place in range(start, stop))

    def tokens(self, start: int, stop: int) -> list[int]:
        """Return the numbers of the same tokens."""
        return tokenize(self.text(start, stop))


def expected_text(prompt: str | Sequence[int], tokens: int, *, choice: int = 0) -> str:
    """Return the first ``tokens`` tokens that any emulated engine answers to a completion prompt."""
    prompt_tokens = tokenize(prompt) if isinstance(prompt, str) else prompt
    return Answer(prompt_digest(prompt_tokens), choice).text(0, tokens)


def chat_prompt(messages: Sequence[dict[str, object]], *, add_generation_prompt: bool = True, tools: str = "") -> str:
    """Return the text that the emulated chat template makes of messages. ``tools`` is their JSON, or empty."""
    parts = [f"<|tools|>{tools}\n"] if tools else []
    parts += [f"<|{message.get('role', '')}|>{_content_text(message)}\n" for message in messages]
    if add_generation_prompt:
        parts.append("<|assistant|>")
    return "".join(parts)


def expected_chat_text(messages: Sequence[dict[str, object]], tokens: int, *, choice: int = 0) -> str:
    """Return the first ``tokens`` tokens of the answer to a chat request without tools."""
    return expected_text(chat_prompt(messages), tokens, choice=choice)


def _word(value: int) -> str:
    return f" {_LETTERS[value % 26]}{_LETTERS[value // 26 % 26]}{_LETTERS[value // 676 % 26]}"


def _content_text(message: dict[str, object]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", part)) if isinstance(part, dict) else str(part) for part in content)
    return "" if content is None else str(content)
