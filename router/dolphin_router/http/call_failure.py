"""Why a call to a worker came to no end."""

from __future__ import annotations

from enum import Enum


class CallFailure(Enum):
    """What is known of it."""

    UNREACHABLE = "unreachable"
    """No connection: the worker has seen nothing of the request."""
    CLOSED_EARLY = "closed-early"
    """The connection ended before the first byte of an answer."""
    CUT = "cut"
    """The connection ended within the answer."""
    INVALID = "invalid"
    """What came is not HTTP."""
