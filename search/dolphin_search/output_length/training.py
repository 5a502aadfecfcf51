"""Training the classifier that a table carries."""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import LogisticRegression

from dolphin_router.contract import INPUT_NAMES, OutputModel
from dolphin_search.output_length.classes import Floats, Ints, LengthClasses
from dolphin_sim.output_length import output_inputs
from dolphin_sim.workloads import Requests

TRAINING_SHARE = 0.75
"""Of the history, in order of arrival; on the rest the accuracy is measured."""


def train_output_model(requests: Requests, classes: LengthClasses) -> OutputModel:
    """Return a multinomial logistic model of the answers' classes.

    Raises:
        ValueError: there are fewer than two requests.
    """
    if len(requests) < 2:
        raise ValueError("two requests at least are needed to train the output-length model: record a longer history")
    inputs = output_inputs(requests)
    labels = classes.of(requests.output_tokens)
    cut = min(max(1, int(TRAINING_SHARE * len(requests))), len(requests) - 1)
    mean = inputs[:cut].mean(axis=0)
    scale = inputs[:cut].std(axis=0)
    scale = np.where(scale > 1e-9, scale, 1.0)
    points = (inputs - mean) / scale
    weights, intercepts = _fit(points[:cut], labels[:cut], len(classes))
    guesses = np.argmax(points[cut:] @ weights.T + intercepts, axis=1)
    return OutputModel(
        inputs=INPUT_NAMES,
        classes=classes.document(),
        mean=tuple(mean.tolist()),
        scale=tuple(scale.tolist()),
        weights=tuple(tuple(row) for row in weights.tolist()),
        intercepts=tuple(intercepts.tolist()),
        accuracy=float(np.mean(guesses == labels[cut:])),
        samples=cut,
    )


def _fit(points: Floats, labels: Ints, count: int) -> tuple[Floats, Floats]:
    """Return a row of weights and an intercept for each class. A class without examples is never guessed."""
    weights = np.zeros((count, points.shape[1]))
    intercepts = np.full(count, -1e6)
    present = np.unique(labels)
    if len(present) == 1:
        intercepts[present[0]] = 0.0
        return weights, intercepts
    fitted = LogisticRegression(max_iter=1000).fit(points, labels)
    if len(present) == 2:
        weights[present[0]], intercepts[present[0]] = 0.0, 0.0
        weights[present[1]], intercepts[present[1]] = fitted.coef_[0], fitted.intercept_[0]
    else:
        weights[present], intercepts[present] = fitted.coef_, fitted.intercept_
    return weights, intercepts
