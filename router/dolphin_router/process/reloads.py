"""How often something was read anew."""

from __future__ import annotations


class Reloads:
    """Counts for metrics, and the reason for people."""

    def __init__(self) -> None:
        self.accepted = 0
        self.refused = 0
        self.last_refusal: str | None = None
        """Why the newest was refused; none while the newest is in use."""
