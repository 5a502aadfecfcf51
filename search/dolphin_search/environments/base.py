"""What a study asks of a place that measures tables."""

from __future__ import annotations

from typing import Protocol

from dolphin_search.measurement import Measurement

Actions = tuple[int, ...]
"""A table: one ``Action`` number for each cluster."""


class Environment(Protocol):
    """Measures tables, one a round."""

    @property
    def is_repeatable(self) -> bool:
        """Whether measuring a table again tells nothing new, since all rounds see the same arrivals."""
        ...

    def measure(self, actions: Actions, *, round_number: int) -> Measurement:
        """Measure this table in the round with this number, from 0.

        Equal arguments give equal measurements where the environment can be reset (in simulation), so that a resumed
        study goes on as an undisturbed one would have.
        """
        ...
