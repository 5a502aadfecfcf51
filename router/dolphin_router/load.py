"""The load on the two workers that a request may go to, as far as the router knows it."""

from __future__ import annotations

from typing import NamedTuple


class Load(NamedTuple):
    """A snapshot of the candidates' load at the moment of the decision."""

    prefill_queue_tokens: float
    """Uncached prompt tokens that wait or are being computed on the candidate prefill worker."""
    decode_queue_tokens: float
    """The same on the candidate decode worker: its local prefills."""
    running_decodes: float
    """Requests that the candidate decode worker is decoding."""


IDLE = Load(0.0, 0.0, 0.0)
