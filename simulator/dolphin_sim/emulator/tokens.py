"""A tokenizer without a vocabulary file: about four bytes a token, and every text comes back whole.

ASCII text is cut into four characters a token; other text into three bytes, so that most Chinese characters are one
token each. A token's number spells its bytes, so that any number below :data:`VOCABULARY` is the token of some text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

_ASCII_CHARACTERS = 4
_OTHER_BYTES = 3

# The first token number of each kind: ASCII pieces of 1 to 4 characters (7 bits each), then others of 1 to 3 bytes.
_ASCII_FIRST = (0, 0, 1 << 7, (1 << 7) + (1 << 14), (1 << 7) + (1 << 14) + (1 << 21))
_ASCII_END = _ASCII_FIRST[4] + (1 << 28)
_OTHER_FIRST = (0, _ASCII_END, _ASCII_END + (1 << 8), _ASCII_END + (1 << 8) + (1 << 16))
VOCABULARY = _OTHER_FIRST[3] + (1 << 24)


def tokenize(text: str) -> list[int]:
    """Return the tokens of a text. A text that goes on has the same tokens up to its last, unfinished one."""
    if text.isascii():
        return _ascii_tokens(text.encode())
    tokens: list[int] = []
    start = 0
    while start < len(text):
        end = start
        is_ascii = text[start].isascii()
        while end < len(text) and text[end].isascii() == is_ascii:
            end += 1
        piece = text[start:end].encode("utf-8", "surrogatepass")
        tokens += _ascii_tokens(piece) if is_ascii else _other_tokens(piece)
        start = end
    return tokens


def detokenize(tokens: Iterable[int]) -> str:
    """Return the text of tokens, each at least 0 and below :data:`VOCABULARY`."""
    return b"".join(map(token_bytes, tokens)).decode("utf-8", "replace")


def token_bytes(token: int) -> bytes:
    """Return the bytes that a token stands for."""
    if token >= _ASCII_END:
        length = 3 if token >= _OTHER_FIRST[3] else 2 if token >= _OTHER_FIRST[2] else 1
        return (token - _OTHER_FIRST[length]).to_bytes(length, "big")
    length = 4 if token >= _ASCII_FIRST[4] else 3 if token >= _ASCII_FIRST[3] else 2 if token >= _ASCII_FIRST[2] else 1
    value = token - _ASCII_FIRST[length]
    return bytes((value >> 7 * place) & 0x7F for place in range(length - 1, -1, -1))


def _ascii_tokens(text: bytes) -> list[int]:
    whole = len(text) // _ASCII_CHARACTERS * _ASCII_CHARACTERS
    places = np.frombuffer(text, dtype=np.uint8, count=whole).reshape(-1, _ASCII_CHARACTERS).astype(np.int64)
    values = (places[:, 0] << 21) | (places[:, 1] << 14) | (places[:, 2] << 7) | places[:, 3]
    tokens: list[int] = (values + _ASCII_FIRST[4]).tolist()
    if whole < len(text):
        tokens.append(_ascii_token(text[whole:]))
    return tokens


def _ascii_token(piece: Sequence[int]) -> int:
    value = 0
    for character in piece:
        value = value << 7 | character
    return _ASCII_FIRST[len(piece)] + value


def _other_tokens(text: bytes) -> list[int]:
    pieces = [text[at : at + _OTHER_BYTES] for at in range(0, len(text), _OTHER_BYTES)]
    return [_OTHER_FIRST[len(piece)] + int.from_bytes(piece, "big") for piece in pieces]
