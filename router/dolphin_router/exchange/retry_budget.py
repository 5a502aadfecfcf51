"""How many requests may be tried again, so that a failing pool is not buried under repetitions."""

from __future__ import annotations


class RetryBudget:
    """Allows a share of extra requests on top of a few."""

    def __init__(self, *, share: float = 0.2, most: float = 10.0) -> None:
        """Make a full budget.

        Args:
            share: repetitions for each request, in the long run.
            most: repetitions that can be saved up.
        """
        self._share = share
        self._most = most
        self._left = most

    def earn(self) -> None:
        """Count a request."""
        self._left = min(self._most, self._left + self._share)

    def spend(self) -> bool:
        """Take one repetition out; false when none is left."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
