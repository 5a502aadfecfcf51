"""What another table would have decided."""

from __future__ import annotations

from .decision import Action
from .routing import ActiveTable, Prompt, Route


class ShadowComparison:
    """Counts where the shadow table and the one in use decide alike and where not.

    Both are asked about the same request in the same moment; guards, which overrule either, do not count. The shadow
    judges by its own guess of the answer's length. Plain arithmetic on numbers that the contract has checked: nothing
    here can fail, nothing waits.
    """

    __slots__ = ("agreements", "decisions", "digest", "disagreements")

    def __init__(self) -> None:
        self.decisions: dict[tuple[Action, Action], int] = {}
        """Requests by what the table in use and the shadow table decided, over all shadow tables."""
        self.digest: str | None = None
        """Of the shadow table that the following are about."""
        self.agreements: dict[int, int] = {}
        """By the shadow table's cluster."""
        self.disagreements: dict[int, int] = {}

    def compare(self, shadow: ActiveTable, prompt: Prompt, route: Route, action: Action) -> None:
        """Count one request.

        Args:
            shadow: the table to ask.
            prompt: of the request.
            route: what was found out about the request.
            action: what was decided, before guards.
        """
        digest = shadow.table.digest
        if digest != self.digest:
            self.digest = digest
            self.agreements = {}
            self.disagreements = {}
        features = route.features._replace(output_tokens=shadow.expected_output_tokens(prompt.output_inputs))
        decision = shadow.policy.decide(features, route.load)
        counts = self.agreements if decision.action is action else self.disagreements
        counts[decision.cluster] = counts.get(decision.cluster, 0) + 1
        pair = (action, decision.action)
        self.decisions[pair] = self.decisions.get(pair, 0) + 1
