"""What workers hold in their prefix caches, by the events that their engines publish."""

from .decoding import (
    AllBlocksCleared,
    Batch,
    BlockRemoved,
    BlockStored,
    BlockTransferred,
    Event,
    Malformed,
    decode_batch,
)
from .event_index import EventIndex

__all__ = [
    "AllBlocksCleared",
    "Batch",
    "BlockRemoved",
    "BlockStored",
    "BlockTransferred",
    "Event",
    "EventIndex",
    "Malformed",
    "decode_batch",
]
