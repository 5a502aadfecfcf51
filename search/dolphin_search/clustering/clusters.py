"""Fitted clusters, and the decider that a table gets from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dolphin_router.contract import ActionName, Bits, Cluster, Clustering, Four, Rewards, Transform

NO_REWARDS = Rewards(local=None, remote=None)


@dataclass(frozen=True)
class Component:
    """One cluster as its method found it, in standardised coordinates."""

    centre: Four
    share: float
    samples: int
    weight: float | None = None
    precision_cholesky: tuple[Four, Four, Four, Four] | None = None


@dataclass(frozen=True)
class Clusters:
    """Clusters without actions."""

    transform: Transform
    clustering: Clustering
    components: tuple[Component, ...]

    def __len__(self) -> int:
        return len(self.components)

    def decider(self, actions: Sequence[ActionName], rewards: Sequence[Rewards] | None = None) -> Bits:
        """Return the table's decider for these actions, one for each cluster."""
        if rewards is None:
            rewards = [NO_REWARDS] * len(self)
        return Bits(
            kind="bits",
            transform=self.transform,
            clustering=self.clustering,
            clusters=tuple(
                Cluster(
                    centre=component.centre,
                    action=action,
                    share=component.share,
                    samples=component.samples,
                    rewards=reward,
                    weight=component.weight,
                    precision_cholesky=component.precision_cholesky,
                )
                for component, action, reward in zip(self.components, actions, rewards, strict=True)
            ),
        )
