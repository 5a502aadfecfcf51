"""What is decided for one request."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from .contract import ActionName


class Action(IntEnum):
    """The path of a request. The numbers are those of the simulator's arrays."""

    LOCAL = 0
    """The decode worker computes the prompt itself."""
    REMOTE = 1
    """A prefill worker computes the prompt and ships its KV cache to the decode worker."""

    @property
    def text(self) -> ActionName:
        """The action as tables name it."""
        return "remote" if self is Action.REMOTE else "local"

    @classmethod
    def from_text(cls, text: str) -> Action:
        """Return the action that a table names.

        Raises:
            ValueError: there is no such action; the message names the text.
        """
        for action in cls:
            if action.text == text:
                return action
        raise ValueError(f"action {text!r} is neither 'local' nor 'remote'")


class Decision(NamedTuple):
    """The action for one request, and what it rests on."""

    action: Action
    cluster: int
    """Index of the request's cluster in the table."""
    reason: str
    """Which rule chose: one of few constants, fit for a metric's label."""
    distance: float
    """From the request to its cluster in transformed coordinates: Euclidean for k-means, Mahalanobis for a mixture."""
