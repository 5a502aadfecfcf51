"""A worker's record of the KV caches that it lent and took, and of what went wrong with them."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

LeaseEnd = Literal["open", "pulled", "aborted", "expired", "dropped"]
MOST_ENTRIES = 10_000


@dataclass
class Lease:
    """A KV cache that a prefill worker keeps for a decode worker. Times are simulated seconds."""

    key: str
    """By which the decode worker asks for it."""
    block_ids: range
    tokens: int
    granted_s: float
    expires_s: float
    end: LeaseEnd = "open"
    """``pulled``: the decode worker has it all. ``aborted``: the decode worker wants it no more. ``expired``: nobody
    came in time. ``dropped``: a fault."""
    claimed: bool = False

    def document(self) -> dict[str, object]:
        """Return the lease as JSON has it; one without an end expires at null."""
        expires_s = self.expires_s if math.isfinite(self.expires_s) else None
        return vars(self) | {"block_ids": list(self.block_ids), "expires_s": expires_s}


@dataclass
class Pull:
    """A KV cache that a decode worker took, or tried to."""

    key: str
    tokens: int = 0
    """That were moved: those the decode worker did not hold."""
    end: Literal["open", "loaded", "aborted", "failed"] = "open"
    was_asked_for: bool = False
    """Whether the prefill worker was reached."""


@dataclass
class Ledger:
    """Newest last. Only the last 10,000 of each kind are kept."""

    leases: deque[Lease] = field(default_factory=lambda: deque(maxlen=MOST_ENTRIES))
    pulls: deque[Pull] = field(default_factory=lambda: deque(maxlen=MOST_ENTRIES))
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_ENTRIES))
    """What a router did wrong: parameters that were used before, that name no KV cache, or that came with another
    prompt."""

    def ended(self, end: LeaseEnd) -> list[Lease]:
        """Return the leases with this end."""
        return [lease for lease in self.leases if lease.end == end]

    @property
    def open(self) -> list[Lease]:
        """Leases that hold memory."""
        return self.ended("open")

    @property
    def expired(self) -> list[Lease]:
        """Leases that nobody came for."""
        return self.ended("expired")

    def document(self) -> dict[str, object]:
        """Return the ledger as JSON has it."""
        return {
            "leases": [lease.document() for lease in self.leases],
            "pulls": [vars(pull) for pull in self.pulls],
            "errors": list(self.errors),
        }
