"""Reads the payload of one message: a batch of events, in every form that engines have used.

A batch and an event are each a MessagePack array or a map: vLLM 0.11 sends arrays in arrays, vLLM 0.33 maps in
arrays, later versions maps in maps; SGLang and ATOM send arrays in arrays. The field names and orders are those of
``vllm/distributed/kv_events.py``, ``sglang/srt/disaggregation/kv_events.py`` and ``atom/distributed/kv_events.py``.
What we do not know of, be it further items, keys or kinds of events, is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

BlockHash = int | bytes
"""The engine's own name for a block, of no meaning to us."""


class BlockStored(NamedTuple):
    """Consecutive blocks of one prompt came to be held in a medium."""

    block_hashes: tuple[BlockHash, ...]
    parent_block_hash: BlockHash | None
    """The block before the first; none when that begins the prompt, or when the event has no tokens."""
    token_ids: tuple[int, ...]
    """Of all the blocks; empty when the engine repeats blocks that it told of before, now in another medium."""
    block_size: int
    lora: str | int | None
    """The adapter's name, or its number from engines that do not tell the name."""
    medium: str
    extra_keys: tuple[bytes | None, ...]
    """For each block what else its identity depends on (cache salt, media), encoded; empty when nothing does."""
    spec_kind: str | None
    """Kind of attention of the model's layers that the block belongs to, where the engine says so."""


class BlockRemoved(NamedTuple):
    """Blocks are no longer held in a medium."""

    block_hashes: tuple[BlockHash, ...]
    medium: str


class BlockTransferred(NamedTuple):
    """Blocks went from one medium to another (ATOM alone)."""

    block_hashes: tuple[BlockHash, ...]
    from_medium: str
    to_medium: str


class AllBlocksCleared(NamedTuple):
    """Nothing is held in a medium any more; in none at all when it is not given."""

    medium: str | None


class Malformed(NamedTuple):
    """Something that cannot be read: a whole message, or one event of a batch."""

    reason: str
    may_remove: bool
    """Whether it could have said that blocks are gone, so that what was known can no longer be relied on."""


Event = BlockStored | BlockRemoved | BlockTransferred | AllBlocksCleared | Malformed


class Batch(NamedTuple):
    """The events of one message, in order."""

    events: tuple[Event, ...]
    data_parallel_rank: int | None


_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
    ),
    "BlockRemoved": ("block_hashes", "medium"),
    "BlockTransferred": ("block_hashes", "from_medium", "to_medium"),
    "AllBlocksCleared": ("medium",),
}
_DEFAULT_MEDIUM: Final = "GPU"

_decode = msgspec.msgpack.Decoder().decode
_encode = msgspec.msgpack.Encoder().encode


def decode_batch(payload: bytes) -> Batch | Malformed:
    """Return what a message's payload says. Never raises, whatever the payload is."""
    try:
        content = _decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return Malformed(f"the payload is not MessagePack: {error}", True)
    if isinstance(content, dict):
        events, rank = content.get("events"), content.get("data_parallel_rank")
    elif isinstance(content, list) and len(content) >= 2:
        events, rank = content[1], content[2] if len(content) > 2 else None
    else:
        return Malformed("the payload is neither an array with events nor a map", True)
    if not isinstance(events, list):
        return Malformed("the payload's events are not an array", True)
    return Batch(
        tuple(event for entry in events if (event := _read_event(entry)) is not None),
        rank if type(rank) is int else None,
    )


def _read_event(entry: object) -> Event | None:
    if isinstance(entry, dict):
        kind, fields = entry.get("type"), entry
    elif isinstance(entry, list) and entry:
        kind = entry[0]
        names = _FIELDS.get(kind, ()) if isinstance(kind, str) else ()
        fields = dict(zip(names, entry[1:], strict=False))
    else:
        return Malformed("an event is neither an array with its kind nor a map", True)
    if not isinstance(kind, str):
        return Malformed("an event's kind is not a text", True)
    read = _READERS.get(kind)
    if read is None:
        return None
    try:
        return read(fields)
    except (TypeError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        return Malformed(f"{kind}: {error}", kind != "BlockStored")


def _stored(fields: Mapping[str, Any]) -> BlockStored:
    hashes = _hashes(fields.get("block_hashes"))
    parent = fields.get("parent_block_hash")
    tokens = msgspec.convert(fields.get("token_ids"), tuple[int, ...])
    block_size = msgspec.convert(fields.get("block_size"), int)
    if block_size < 1:
        raise ValueError("block_size is less than 1")
    if tokens and len(tokens) != block_size * len(hashes):
        raise ValueError(f"{len(tokens)} tokens are not {len(hashes)} blocks of {block_size}")
    lora = fields.get("lora_name") or fields.get("lora_id")
    return BlockStored(
        block_hashes=hashes,
        parent_block_hash=None if parent is None else _hashes([parent])[0],
        token_ids=tokens,
        block_size=block_size,
        lora=lora if isinstance(lora, str | int) else None,
        medium=_medium(fields.get("medium")),
        extra_keys=_extra_keys(fields.get("extra_keys"), len(hashes), lora),
        spec_kind=kind if isinstance(kind := fields.get("kv_cache_spec_kind"), str) else None,
    )


def _removed(fields: Mapping[str, Any]) -> BlockRemoved:
    return BlockRemoved(_hashes(fields.get("block_hashes")), _medium(fields.get("medium")))


def _transferred(fields: Mapping[str, Any]) -> BlockTransferred:
    return BlockTransferred(
        _hashes(fields.get("block_hashes")), _medium(fields.get("from_medium")), _medium(fields.get("to_medium"))
    )


def _cleared(fields: Mapping[str, Any]) -> AllBlocksCleared:
    medium = fields.get("medium")
    return AllBlocksCleared(None if medium is None else _medium(medium))


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Event]]] = {
    "BlockStored": _stored,
    "BlockRemoved": _removed,
    "BlockTransferred": _transferred,
    "AllBlocksCleared": _cleared,
}


def _hashes(value: object) -> tuple[BlockHash, ...]:
    return msgspec.convert(value, tuple[int | bytes, ...])


def _medium(value: object) -> str:
    if value is None:
        return _DEFAULT_MEDIUM
    if not isinstance(value, str):
        raise ValueError("a medium is not a text")
    return value.upper()


def _extra_keys(value: object, count: int, lora: object) -> tuple[bytes | None, ...]:
    """Return each block's extra keys without the adapter, which the prompt's first key holds already."""
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) != count:
        raise ValueError("extra_keys has not one entry for each block")
    encoded = tuple(_encoded_extra(entry, lora) for entry in value)
    return encoded if any(entry is not None for entry in encoded) else ()


def _encoded_extra(entry: object, lora: object) -> bytes | None:
    if entry is None:
        return None
    if not isinstance(entry, list):
        raise ValueError("an entry of extra_keys is neither null nor an array")
    rest: Sequence[object] = entry[1:] if entry and lora is not None and entry[0] == lora else entry
    return _encode(rest) if rest else None


def salt_as_extra_key(cache_salt: str) -> bytes:
    """Return what the first block's entry in ``extra_keys`` is for a request with this cache salt."""
    return _encode([cache_salt])
