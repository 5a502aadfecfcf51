"""What is measured: each case is one load against one kind of stub engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Case:
    """One load. Every target gets the same."""

    name: str
    connections: int
    prompt_bytes: int = 200
    stream: bool = False
    chunk_interval_ms: float = 0.0
    """Between the chunks of a stream; 0: as fast as they can be written."""
    stagger_ms: float = 0.0
    """Between the starts of two clients."""

    def load_arguments(self) -> list[str]:
        """Return the load generator's arguments for this case."""
        sizes = ["--connections", str(self.connections), "--prompt-bytes", str(self.prompt_bytes)]
        stagger = ["--stagger-ms", str(self.stagger_ms)] if self.stagger_ms else []
        return [*sizes, *stagger, *(["--stream"] if self.stream else [])]


CASES = {
    case.name: case
    for case in (
        Case(name="unary", connections=32),
        Case(name="stream", connections=32, stream=True),
        # Streams that began together would end together, and how many ends fall into the window would be chance.
        Case(name="paced", connections=32, stream=True, chunk_interval_ms=10.0, stagger_ms=20.0),
        Case(name="unary-1", connections=1),
        Case(name="prompt-32k", connections=32, prompt_bytes=32 * 1024),
        Case(name="prompt-220k", connections=32, prompt_bytes=220 * 1024),
    )
}
