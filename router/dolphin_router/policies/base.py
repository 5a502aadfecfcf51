"""What every routing policy does, and how a table becomes one."""

from __future__ import annotations

from typing import Protocol

from dolphin_router.contract import KMeans, TableContent
from dolphin_router.decision import Decision
from dolphin_router.features import Features
from dolphin_router.load import Load

from .bits import LikeliestComponentBits, NearestCentreBits


class Policy(Protocol):
    """Chooses the path of one request: pure, synchronous, the same on every replica."""

    def decide(self, features: Features, load: Load) -> Decision:
        """Return the decision for a request with these features while its candidate workers have this load."""


def policy_from_table(table: TableContent) -> Policy:
    """Return the policy that a table holds, with everything that does not depend on the request computed ahead."""
    if isinstance(table.decider.clustering, KMeans):
        return NearestCentreBits(table.decider)
    return LikeliestComponentBits(table.decider)
