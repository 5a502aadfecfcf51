"""A search that was interrupted: the rounds so far, from which it goes on as if it had not been."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from .clustering import ActionName
from .model import MOST_BYTES, Count, DocumentPart, Fraction, Name, inconsistency

CHECKPOINT_FORMAT: Final = "dolphinrouting.dev/checkpoint/v1"


# The longest that a round, or a cluster's share of it, can be: names, punctuation, counts below 10⁹ and numbers of 17
# digits, which canonical JSON writes in at most 25 characters.
_BYTES_A_ROUND = 200
_BYTES_A_CLUSTER = len('"remote",') + len("999999999,") + len("-0.0000012345678901234567,")
_BYTES_BESIDE_ROUNDS = 400


def most_rounds(clusters: int) -> int:
    """Return how many rounds a checkpoint certainly holds: it has to fit into a ConfigMap."""
    return (MOST_BYTES - _BYTES_BESIDE_ROUNDS) // (_BYTES_A_ROUND + clusters * _BYTES_A_CLUSTER)


class CheckpointRound(DocumentPart):
    """One measured table."""

    actions: Annotated[tuple[ActionName, ...], Field(min_length=1, max_length=64)]
    requests: Count
    attainment: Fraction
    log_latency: float
    cluster_requests: tuple[Count, ...]
    cluster_attainment: tuple[Fraction, ...]

    @model_validator(mode="after")
    def _one_entry_for_each_cluster(self) -> CheckpointRound:
        for name in ("cluster_requests", "cluster_attainment"):
            if len(getattr(self, name)) != len(self.actions):
                raise inconsistency(f"has {len(getattr(self, name))} entries for {len(self.actions)} clusters", name)
        return self


class Checkpoint(DocumentPart):
    """The rounds of a study."""

    format: Literal["dolphinrouting.dev/checkpoint/v1"]
    fingerprint: Name
    """Of everything that the measurements depend on. A search with another one does not go on from here."""
    rounds: tuple[CheckpointRound, ...]
