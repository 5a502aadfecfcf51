"""What a study asks of a place that measures tables."""

from __future__ import annotations

from typing import Protocol

from dolphin_search.measurement import Measurement

Actions = tuple[int, ...]
"""A table: one ``Action`` number for each cluster."""


class Environment(Protocol):
    """Measures tables, one a period."""

    @property
    def is_repeatable(self) -> bool:
        """Whether measuring a table again tells nothing new, since all periods see the same arrivals."""
        ...

    def measure(self, actions: Actions, *, period: int) -> Measurement:
        """Run one period under this table.

        Equal arguments give equal measurements where the environment can be reset (in simulation), so that a resumed
        study goes on as an undisturbed one would have.
        """
        ...
