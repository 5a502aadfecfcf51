"""What became of one request that was sent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dolphin_router.contract import ActionName

End = Literal["whole", "failed", "unfinished", "not-sent"]


@dataclass(slots=True)
class Answer:
    """Times are seconds since the replay began, on its clock; infinite for what did not happen."""

    due_s: float
    sent_s: float = math.inf
    first_token_s: float = math.inf
    last_token_s: float = math.inf
    events: int = 0
    """Pieces of the answer that held tokens."""
    counted_tokens: int | None = None
    """As the engine counted its answer."""
    status: int | None = None
    end: End = "not-sent"
    reason: str = ""
    """Why it failed."""
    action: ActionName | None = None
    """The path that the router took, where it said so."""
    cluster: int | None = None
    features: tuple[float, ...] | None = None

    @property
    def lag_s(self) -> float:
        """How long after it was due the request was sent."""
        return max(self.sent_s - self.due_s, 0.0)

    @property
    def tokens(self) -> int:
        """Length of the answer: as counted by the engine, else one for each piece."""
        return self.events if self.counted_tokens is None else self.counted_tokens
