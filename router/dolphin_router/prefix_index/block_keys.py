"""Names for the leading blocks of a prompt: equal names, equal prompts up to there.

A block's key depends on all bytes before it, so a prompt that shares a prefix with another shares the keys of that
prefix's whole blocks. Keys are Python's own hashes (SipHash over bytes, chained through tuples, 61 bits): they are
used within one process only, and cost a third of a cryptographic digest. The hash's key is Python's, which
``PYTHONHASHSEED`` may fix to something that outsiders know; with it they could make up two prompts with one key. So
each block is hashed behind a secret of the process.
"""

from __future__ import annotations

import secrets
from typing import Final

from msgspec import UNSET

from dolphin_router.completion_request import CompletionRequest

BLOCK_BYTES: Final = 512
"""About 128 tokens of English text; an engine's own block is often 16 tokens."""
FINE_BLOCKS: Final = 16
"""Blocks of the least size. Later ones are longer, and again longer after :data:`COARSE_BLOCKS` of those, so that a
long prompt costs less time and memory; what a match falls short by is then at most a quarter of what it finds."""
COARSE_BLOCK_BYTES: Final = 2048
COARSE_BLOCKS: Final = 12
LONG_BLOCK_BYTES: Final = 8192
_FINE_BYTES: Final = FINE_BLOCKS * BLOCK_BYTES
_COARSE_BYTES: Final = _FINE_BYTES + COARSE_BLOCKS * COARSE_BLOCK_BYTES

_SECRET: Final = secrets.token_bytes(16)


def prompt_seed(request: CompletionRequest) -> bytes:
    """Return what else the prompt's tokens and the name of its cache entries depend on.

    That is: whether a chat template applies, which template, what the request hands to it beside the messages, the
    cache salt, and the model; an engine's LoRA adapters go by the model's name.
    """
    fields = request.fields
    # JSON text holds no zero byte, so the parts cannot run into each other; the model's name comes last.
    parts = [b"chat" if request.is_chat else b"text"]
    for member in (
        fields.tools,
        fields.chat_template,
        fields.chat_template_kwargs,
        fields.documents,
        fields.cache_salt,
    ):
        parts.append(b"" if member is UNSET else bytes(member))
    parts.append((fields.model or "").encode("utf-8", "surrogatepass"))
    return b"\0".join(parts)


def block_keys(seed: bytes, content: bytes | memoryview) -> tuple[int, ...]:
    """Return the keys of the whole blocks of ``content``, the first block first.

    ``content`` is the prompt as the client wrote it in JSON: the next turn of a conversation begins with the same
    bytes but for the closing bracket. The bytes after the last whole block have no key.
    """
    secret = _SECRET
    size = len(content)
    key = hash(secret + seed)
    keys: list[int] = []
    append = keys.append
    # Short blocks are cut out of a copy in half the time that it takes to cut them out of a view.
    first = bytes(content[:_COARSE_BYTES])
    for start in range(0, min(size, _FINE_BYTES) - BLOCK_BYTES + 1, BLOCK_BYTES):
        key = hash((key, secret + first[start : start + BLOCK_BYTES]))
        append(key)
    for start in range(_FINE_BYTES, min(size, _COARSE_BYTES) - COARSE_BLOCK_BYTES + 1, COARSE_BLOCK_BYTES):
        key = hash((key, secret + first[start : start + COARSE_BLOCK_BYTES]))
        append(key)
    for start in range(_COARSE_BYTES, size - LONG_BLOCK_BYTES + 1, LONG_BLOCK_BYTES):
        key = hash((key, secret + content[start : start + LONG_BLOCK_BYTES]))
        append(key)
    return tuple(keys)


def next_key(key: int, block: bytes | memoryview) -> int:
    """Return the key of a block that follows the one with this key."""
    return hash((key, _SECRET + block))


def bytes_of_blocks(count: int) -> int:
    """Return how many bytes the first ``count`` blocks of a prompt have."""
    if count <= FINE_BLOCKS:
        return count * BLOCK_BYTES
    coarse = count - FINE_BLOCKS
    if coarse <= COARSE_BLOCKS:
        return _FINE_BYTES + coarse * COARSE_BLOCK_BYTES
    return _COARSE_BYTES + (coarse - COARSE_BLOCKS) * LONG_BLOCK_BYTES
