"""Prompts as token ids that share prefixes exactly as the requests of a workload do."""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dolphin_sim.workloads.requests import Requests

FIRST_ID: Final = 10_000
END_ID: Final = 32_000
"""Ids have five digits: a token takes six bytes of JSON, and every model in use has that many tokens in its
vocabulary."""

_DIGITS: Final = 5
_WIDTH: Final = _DIGITS + 1
_POWERS: Final = 10 ** np.arange(_DIGITS - 1, -1, -1, dtype=np.int64)

Words = NDArray[np.uint64]
Ids = NDArray[np.int64]


class PromptTokens:
    """The prompts of some requests.

    Equal blocks have equal ids, and blocks that differ have ids of their own, so that two prompts begin alike for as
    many tokens as their leading blocks are equal. The tokens after a prompt's last whole block are its own.

    Args:
        requests: of a workload.
        salt: prompts under another salt begin with other tokens, so that nothing of them is cached from an earlier run.
    """

    def __init__(self, requests: Requests, *, salt: int = 0) -> None:
        self._requests = requests
        text = f"{salt} {requests.digest()}"
        self._salt = np.uint64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big"))

    def ids(self, row: int) -> Ids:
        """Return the token ids of a request's prompt."""
        requests = self._requests
        blocks = requests.block_ids[requests.block_offsets[row] : requests.block_offsets[row + 1]]
        own_tokens = int(requests.prompt_tokens[row]) - len(blocks) * requests.block_tokens
        # Of two kinds: even seeds are of blocks, odd ones of what comes after the last block.
        shared = self._tokens(blocks.astype(np.uint64) << np.uint64(1), requests.block_tokens)
        own = self._tokens(np.array([row * 2 + 1], dtype=np.uint64), own_tokens)
        return np.concatenate([shared.ravel(), own.ravel()])

    def json(self, row: int) -> bytes:
        """Return the same as a JSON list."""
        ids = self.ids(row)
        text = np.empty((len(ids), _WIDTH), dtype=np.uint8)
        text[:, :_DIGITS] = ids[:, None] // _POWERS % 10 + ord("0")
        text[:, _DIGITS] = ord(",")
        return b"[" + text.tobytes()[:-1] + b"]"

    def _tokens(self, seeds: Words, count: int) -> Ids:
        """Return ``count`` ids for each seed."""
        places = np.arange(count, dtype=np.uint64)
        mixed = _mixed(_mixed(seeds ^ self._salt)[:, None] + places)
        return FIRST_ID + (mixed % np.uint64(END_ID - FIRST_ID)).astype(np.int64)


def _mixed(words: Words) -> Words:
    """Return a hash of each word.

    The finaliser of SplitMix64; see Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014.
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
