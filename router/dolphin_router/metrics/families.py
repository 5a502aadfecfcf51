"""Families of samples, and their text in Prometheus's format (version 0.0.4)."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram", "summary"]
Labels = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    """One number."""

    labels: Labels
    """Names and values, in an order that is the same in every process."""
    value: float
    suffix: str = ""
    """Added to the family's name: ``_bucket``, ``_sum`` or ``_count``."""


class Family(NamedTuple):
    """All samples of one name."""

    name: str
    """With ``_total`` where it is a counter."""
    kind: Kind
    help: str
    samples: Sequence[Sample]


class Histogram:
    """Counts values in buckets."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """Take the upper bounds of the buckets, in rising order; one without end follows them."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self, labels: Labels) -> Iterator[Sample]:
        """Yield the samples of this histogram."""
        below = 0
        for bound, count in zip((*self._bounds, math.inf), self._counts, strict=True):
            below += count
            yield Sample((*labels, ("le", _number(bound))), below, "_bucket")
        yield Sample(labels, self._sum, "_sum")
        yield Sample(labels, below, "_count")


def render(families: Iterable[Family]) -> Iterator[bytes]:
    """Yield the text of each family. Between two of them other work may be done."""
    for name, kind, help_text, samples in families:
        lines = [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
        for labels, value, suffix in samples:
            if labels:
                pairs = ",".join([f'{label}="{_escaped(text)}"' for label, text in labels])
                lines.append(f"{name}{suffix}{{{pairs}}} {_number(value)}")
            else:
                lines.append(f"{name}{suffix} {_number(value)}")
        lines.append("")
        yield "\n".join(lines).encode("utf-8", "replace")


def _escaped(text: str) -> str:
    # Nearly all values are plain, and a search for each of three characters costs more than this.
    if text.isalnum():
        return text
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
