"""What a client may send, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class HttpLimits:
    """Beyond these a request is refused and its connection closed."""

    head_bytes: int = 65_536
    """Request line and headers: 431."""
    headers: int = 128
    """Number of headers: 431."""
    body_bytes: int = 33_554_432
    """Room for a prompt of some ten million tokens, or for a few images: 413."""
    pipelined_requests: int = 16
    """Read ahead on one connection; then it is not read until an answer has gone out."""
    head_timeout_s: float = 30.0
    """From the first byte of a request to the end of its head: 408."""
    body_timeout_s: float = 60.0
    """Between two pieces of a body: 408."""
    keep_alive_s: float = 75.0
    """An idle connection stays open this long, a little longer than the idle time of common proxies before us."""
    unread_s: float = 300.0
    """A client may leave the end of an answer unread this long; then its connection is cut."""
    linger_s: float = 2.0
    """After a refusal, what the client still sends is thrown away until it has paused this long."""
    longest_linger_s: float = 30.0
    """And no longer than this in all."""
