"""Three classes of answer length, learned from answers."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from dolphin_router.contract import CLASS_NAMES, ClassName, OutputClass, OutputModel

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LengthClasses:
    """Classes in rising order."""

    upper_bounds_tokens: tuple[int, ...]
    """The longest answer of each class but the last."""
    representative_tokens: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.representative_tokens)

    def of(self, output_tokens: Ints) -> Ints:
        """Return the class of each answer."""
        return np.searchsorted(np.array(self.upper_bounds_tokens, dtype=np.int64), output_tokens, side="left")

    def representatives(self, classes: Ints) -> Floats:
        """Return the representative length of each class index."""
        return np.array(self.representative_tokens, dtype=np.float64)[classes]

    def document(self) -> tuple[OutputClass, ...]:
        """Return the classes as a table holds them."""
        bounds = (*self.upper_bounds_tokens, None)
        few: tuple[ClassName, ...] = ("short", "long")
        names = CLASS_NAMES if len(self) == len(CLASS_NAMES) else few[: len(self)]
        return tuple(
            OutputClass(name=name, upper_bound_tokens=bound, representative_tokens=representative)
            for name, bound, representative in zip(names, bounds, self.representative_tokens, strict=True)
        )


def learn_classes(output_tokens: Ints) -> LengthClasses:
    """Return at most three classes: one-dimensional k-means of the logarithms, each represented by its median.

    Raises:
        ValueError: there are no answers.
    """
    if len(output_tokens) == 0:
        raise ValueError("there are no answers to learn length classes from: record a longer history")
    logarithms = np.log(output_tokens.astype(np.float64))[:, None]
    count = min(len(CLASS_NAMES), len(np.unique(output_tokens)))
    centres = np.sort(KMeans(n_clusters=count, n_init=10, random_state=0).fit(logarithms).cluster_centers_[:, 0])
    bounds = [math.floor(math.exp((low + high) / 2)) for low, high in itertools.pairwise(centres)]
    classes = np.searchsorted(np.array(bounds), output_tokens, side="left")
    representatives = [round(float(np.median(output_tokens[classes == k]))) for k in range(count)]
    return LengthClasses(tuple(bounds), tuple(representatives))


def classes_of(model: OutputModel) -> LengthClasses:
    """Return the classes of a table's output model."""
    bounds = [entry.upper_bound_tokens for entry in model.classes if entry.upper_bound_tokens is not None]
    return LengthClasses(
        tuple(math.floor(bound) for bound in bounds),
        tuple(round(entry.representative_tokens) for entry in model.classes),
    )
