"""What a worker was sent, for tests to look at."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.types import Scope

MOST_RECEIVED = 10_000


@dataclass
class Received:
    """One request. The worker keeps the last 10,000."""

    method: str
    path: str
    raw_headers: list[tuple[bytes, bytes]]
    arrived_s: float
    """On the event loop's clock."""
    body: bytes = b""
    status: int | None = None
    """That it was answered with; None when it was not."""
    end: Literal["open", "answered", "left", "fault"] = "open"
    """``left``: the client did, before the answer was whole."""
    ended_s: float | None = None
    headers: dict[str, str] = field(default_factory=dict)
    """Names in lower case; of repeated ones the last."""

    @classmethod
    def of(cls, scope: Scope) -> Received:
        """Return what is known before the body has come."""
        raw = list(scope["headers"])
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in raw}
        now_s = asyncio.get_running_loop().time()
        return cls(scope["method"], scope["path"], raw, now_s, headers=headers)

    @property
    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)

    def finish(self, end: Literal["answered", "left", "fault"]) -> None:
        """Note how it ended. The first end counts."""
        if self.end == "open":
            self.end = end
            self.ended_s = asyncio.get_running_loop().time()
