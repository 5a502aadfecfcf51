"""One learned table and all that is shown of it."""

from __future__ import annotations

from dataclasses import dataclass

from dolphin_router.contract import RoutingTable
from dolphin_search.comparison_run import ComparisonRun
from dolphin_search.preparation import Preparation
from dolphin_search.replay.rehearsal import Rehearsal
from dolphin_search.samplers.base import Round


@dataclass(frozen=True, eq=False)
class LearnedCase:
    """A search's input, course and result, and the comparison and the rehearsal where they were made."""

    preparation: Preparation
    rounds: list[Round]
    table: RoutingTable
    comparison: ComparisonRun | None
    rehearsal: Rehearsal | None = None
