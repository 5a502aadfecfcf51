"""What the router knows of one request: filled along the way, read by metrics, recorder and learners at its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from msgspec import Raw

from .decision import Decision
from .features import Features
from .output_length import OutputInputs
from .token_count import TokenEstimate

Outcome = Literal["completed", "rejected", "failed", "client-closed"]
"""``rejected``: a worker answered with an error status, which was passed on. ``failed``: no worker's answer reached the
client whole. ``client-closed``: the client left first."""


@dataclass(slots=True)
class RequestRecord:
    """Times are seconds of the event loop's clock. What is not known (yet) is None."""

    arrived_s: float
    arrived_unix_s: float
    path: str
    model: str
    prompt: Raw | None = None
    """The prompt's or the messages' JSON."""
    prompt_estimate: TokenEstimate | None = None
    prompt_keys: tuple[int, ...] = ()
    """Keys of the prompt's leading blocks in the prefix index."""
    prompt_seed: bytes = b""
    features: Features | None = None
    output_inputs: OutputInputs | None = None
    decision: Decision | None = None
    """What the policy decided."""
    action_taken: Literal["local", "remote"] | None = None
    reason: str = ""
    """Why that action was taken: the policy's reason, or the guard's that overruled it."""
    prefill_worker: str | None = None
    decode_worker: str | None = None
    table_digest: str | None = None
    first_byte_s: float | None = None
    finished_s: float | None = None
    status: int | None = None
    """Sent to the client; None when it left before."""
    outcome: Outcome | None = None
    streamed: bool = False
    usage_prompt_tokens: int | None = None
    """As the engine counted them, where the answer said so."""
    generated_tokens: int | None = None
    """From the engine's usage, else the events of a stream with one choice."""
    retries: int = 0
    stranded_leases: int = 0
    errors: list[str] = field(default_factory=list)
