"""Where a table comes from: how it was searched for, on what, and how it scored."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from .model import NO_CONTROL_CHARACTERS, Count, DocumentPart, Fraction, Name, NonNegative, Positive, inconsistency


class Score(DocumentPart):
    """One policy's attainment on held-out requests: the share that met the SLO."""

    attainment: Fraction
    interval: tuple[Fraction, Fraction] | None
    """The 95 % interval, low and high; null where none was computed."""

    @model_validator(mode="after")
    def _interval_is_ordered(self) -> Score:
        if self.interval is not None and self.interval[0] > self.interval[1]:
            raise inconsistency("has its ends in the wrong order", "interval")
        return self


class Provenance(DocumentPart):
    """How the table was made. Equal provenance inputs and measurements give an equal table."""

    sampler: Name
    sampler_settings: dict[Name, float]
    """The sampler's numbers by name, such as the probability to explore; empty where it has none."""
    reward: Name
    """The quantity that the search made large; the clusters' rewards are in its unit."""
    seed: Count
    rounds: Count
    """Tables measured, those measured again included."""
    periods_per_round: Count
    period_s: Positive | None
    """How long a candidate table was measured; null where no periods were run."""
    settle_s: NonNegative | None
    """How much of the start of a period was left out."""
    arrivals: Name | None
    """``common``, all rounds saw the same arrivals, or ``fresh``, each its own; null where there were no rounds."""
    arrival_rate_per_s: Positive | None
    environment: Name
    """Where it was measured: ``simulated`` or ``live``."""
    hardware_profile: Name | None
    workload: Annotated[str, Field(min_length=1, max_length=4096, pattern=NO_CONTROL_CHARACTERS)]
    workload_digest: Name | None
    expected_lengths: Name
    """Where the expected lengths of answers came from: ``trained`` (the table's output model), ``simulated`` (a
    classifier that is right as often as stated), ``perfect``, or ``none``."""
    expected_lengths_accuracy: Fraction | None
    """Share of answers that they put into the right class: measured where they were trained, else as stated; null for
    ``none``."""
    clustering_initialisations: Annotated[Count, Field(ge=1)] | None
    """Of which the clusters are the best; null where they were not found by a search."""
    scores: dict[Name, Score]
    """By policy, on the same held-out requests."""

    @classmethod
    def unsearched(cls, environment: str, *, seed: int = 0) -> Provenance:
        """Return the provenance of a table that was written down instead of searched for; ``seed`` tells two apart."""
        return cls(
            sampler="none",
            sampler_settings={},
            reward="none",
            seed=seed,
            rounds=0,
            periods_per_round=1,
            period_s=None,
            settle_s=None,
            arrivals=None,
            arrival_rate_per_s=None,
            environment=environment,
            hardware_profile=None,
            workload="none",
            workload_digest=None,
            expected_lengths="none",
            expected_lengths_accuracy=None,
            clustering_initialisations=None,
            scores={},
        )
