"""What happened on the way of events to the index, for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class EventCounters:
    """What happened since the start, over all workers."""

    messages: int = 0
    events: int = 0
    decode_errors: int = 0
    unplaced_blocks: int = 0
    """Stored blocks whose parent is not known, or beyond the limit: they are not counted as held."""
    gaps: int = 0
    """Times that messages were missed, joining an engine that had begun to publish before not among them."""
    replays: int = 0
    """Times that missed messages were asked for again and all came."""
    restarts: int = 0
    """Times that an engine's message numbers began anew."""
    forgets: int = 0
    """Times that all knowledge of a worker was given up, for a gap, a restart or a message that could not be read."""
