"""What a study asks of a sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dolphin_search.environments.base import Actions
from dolphin_search.measurement import Measurement


@dataclass(frozen=True)
class Round:
    """One table and what a period said of it."""

    actions: Actions
    measurement: Measurement


class Sampler(Protocol):
    """Proposes tables.

    A sampler keeps no state between calls: it decides from the rounds so far and its seed, so that a study can be
    resumed from its rounds alone.
    """

    @property
    def name(self) -> str:
        """As provenance gives it."""
        ...

    @property
    def reward(self) -> str:
        """The quantity that it makes large."""
        ...

    @property
    def settings(self) -> dict[str, float]:
        """Its numbers by name, as provenance gives them."""
        ...

    def ask(self, rounds: Sequence[Round], *, clusters: int, is_repeatable: bool) -> Actions | None:
        """Return the table to measure next; None when there is nothing left to learn.

        Args:
            rounds: all so far, oldest first.
            clusters: length of a table.
            is_repeatable: measuring a table again would give the same result.
        """
        ...

    def best(self, rounds: Sequence[Round]) -> Actions:
        """Return the table that is best by these rounds, of which there is at least one."""
        ...
