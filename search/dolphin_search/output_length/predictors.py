"""Where expected answer lengths come from in a simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np

from dolphin_router.contract import OutputModel, RoutingTable
from dolphin_search.output_length.classes import Floats, LengthClasses, classes_of
from dolphin_sim.output_length import predicted_output_tokens
from dolphin_sim.workloads import Requests

PredictorKind = Literal["trained", "simulated", "perfect", "none"]
PREDICTOR_KINDS: tuple[PredictorKind, ...] = get_args(PredictorKind)
DEFAULT_ACCURACY = 0.8


class Predictor(Protocol):
    """Says before an answer is written how long it will be."""

    def expected_output_tokens(self, requests: Requests, *, seed: int) -> Floats:
        """Return the representative length of each request's expected class, n numbers."""
        ...


@dataclass(frozen=True)
class TrainedPredictor:
    """The model that the table carries, on the inputs that the requests have."""

    model: OutputModel

    def expected_output_tokens(self, requests: Requests, *, seed: int) -> Floats:
        """As the router would guess; the seed plays no part."""
        return predicted_output_tokens(self.model, requests)


@dataclass(frozen=True)
class SimulatedPredictor:
    """A classifier with a stated confusion matrix, for traces that have nothing to guess from.

    It names the true class with probability ``accuracy`` and each of the others equally often. With accuracy 1 it is
    perfect.
    """

    classes: LengthClasses
    accuracy: float

    def expected_output_tokens(self, requests: Requests, *, seed: int) -> Floats:
        """Draw each guess; equal seeds give equal guesses."""
        true = self.classes.of(requests.output_tokens)
        random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
        is_wrong = random.random(len(requests)) >= self.accuracy
        offset = random.integers(1, max(len(self.classes), 2), len(requests))
        guessed = np.where(is_wrong, (true + offset) % len(self.classes), true)
        return self.classes.representatives(guessed)


@dataclass(frozen=True)
class NoPredictor:
    """No classifier: every request is expected to be equally long."""

    def expected_output_tokens(self, requests: Requests, *, seed: int) -> Floats:
        """Return zeros."""
        return np.zeros(len(requests))


def has_inputs(requests: Requests) -> bool:
    """Tell whether the rows say more of a request than the length of its prompt."""
    return any(
        np.any(getattr(requests, name)) for name in ("max_tokens", "turns", "tools", "json_format", "system_hash")
    )


def make_predictor(
    kind: PredictorKind | None,
    *,
    requests: Requests,
    classes: LengthClasses,
    model: OutputModel,
    accuracy: float = DEFAULT_ACCURACY,
) -> tuple[PredictorKind, Predictor]:
    """Return the predictor of this kind and its kind; without one, ``trained`` if the rows have inputs, else
    ``simulated``."""
    if kind is None:
        kind = "trained" if has_inputs(requests) else "simulated"
    if kind == "trained":
        return kind, TrainedPredictor(model)
    if kind == "none":
        return kind, NoPredictor()
    return kind, SimulatedPredictor(classes, 1.0 if kind == "perfect" else accuracy)


def expected_accuracy(kind: PredictorKind, model: OutputModel, *, stated: float) -> float | None:
    """Return the share of answers that a predictor puts into the right class; none where there is no predictor.

    Args:
        kind: of the predictor.
        model: that was trained, with its measured accuracy.
        stated: accuracy of a simulated one.
    """
    return {"trained": model.accuracy, "simulated": stated, "perfect": 1.0, "none": None}[kind]


def predictor_of_table(
    table: RoutingTable, kind: PredictorKind | None, *, accuracy: float = DEFAULT_ACCURACY
) -> tuple[PredictorKind, Predictor]:
    """Return the predictor that a table was learned with, or one of another kind over the table's length classes.

    Raises:
        ValueError: the table has no output model, or names a kind of predictor that is not known.
    """
    kind = kind or _known(table.provenance.expected_lengths)
    if kind == "none":
        return kind, NoPredictor()
    if table.output_model is None:
        raise ValueError(f"the table has no output model, so expected lengths cannot be {kind}: choose none")
    if kind == "trained":
        return kind, TrainedPredictor(table.output_model)
    return kind, SimulatedPredictor(classes_of(table.output_model), 1.0 if kind == "perfect" else accuracy)


def _known(name: str) -> PredictorKind:
    for kind in PREDICTOR_KINDS:
        if kind == name:
            return kind
    raise ValueError(f"expected lengths came from {name!r} when the table was learned: say where they come from now")
