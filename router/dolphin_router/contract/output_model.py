"""The classifier that guesses how long an answer will be, from what is known of a request without its text."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from .model import Count, DocumentPart, Fraction, Positive, inconsistency

PROMPT_BUCKETS = 8
INPUT_NAMES = (
    "log1p_prompt_tokens",
    "log1p_max_tokens",
    "has_max_tokens",
    "log1p_turns",
    "has_tools",
    "json_response",
    *(f"system_prompt_bucket_{bucket}" for bucket in range(PROMPT_BUCKETS)),
)
ClassName = Literal["short", "medium", "long"]
CLASS_NAMES: tuple[ClassName, ...] = get_args(ClassName)

_OneForEachInput = Annotated[tuple[float, ...], Field(min_length=len(INPUT_NAMES), max_length=len(INPUT_NAMES))]
_ScaleOfEachInput = Annotated[tuple[Positive, ...], Field(min_length=len(INPUT_NAMES), max_length=len(INPUT_NAMES))]


class OutputClass(DocumentPart):
    """Answers of similar length."""

    name: ClassName
    upper_bound_tokens: Positive | None
    """The longest answer in the class; null for the last class, which has no end."""
    representative_tokens: Positive
    """The length that stands for the class."""


class OutputModel(DocumentPart):
    """A multinomial logistic classifier: the class with the largest ``weights · (input - mean) / scale + intercept``.

    The first of equally good classes wins. A binary classifier is written with one row for each class.
    """

    inputs: tuple[str, ...]
    """:data:`INPUT_NAMES`: written down so that a table explains itself."""
    classes: Annotated[tuple[OutputClass, ...], Field(min_length=1, max_length=len(CLASS_NAMES))]
    mean: _OneForEachInput
    scale: _ScaleOfEachInput
    weights: tuple[_OneForEachInput, ...]
    intercepts: tuple[float, ...]
    accuracy: Fraction
    """Share of right classes, measured on requests that the model was not trained on."""
    samples: Count
    """Requests that it was trained on."""

    @model_validator(mode="after")
    def _parts_fit_together(self) -> OutputModel:
        if self.inputs != INPUT_NAMES:
            raise inconsistency(f"must be exactly {', '.join(INPUT_NAMES)}", "inputs")
        for name in ("weights", "intercepts"):
            count = len(getattr(self, name))
            if count != len(self.classes):
                raise inconsistency(f"has {count} entries, but there are {len(self.classes)} classes", name)
        self._check_classes()
        return self

    def _check_classes(self) -> None:
        lower = 0.0
        names: list[str] = []
        for index, output_class in enumerate(self.classes):
            place = ("classes", index)
            names.append(output_class.name)
            if names != [name for name in CLASS_NAMES if name in names]:
                raise inconsistency("is out of order: short, medium, long", *place, "name")
            upper = output_class.upper_bound_tokens
            is_last = index == len(self.classes) - 1
            if (upper is None) != is_last:
                raise inconsistency("must be null for the last class and for no other", *place, "upper_bound_tokens")
            if upper is not None and upper <= lower:
                raise inconsistency("must be above the previous class's", *place, "upper_bound_tokens")
            if not lower < output_class.representative_tokens <= (upper or float("inf")):
                raise inconsistency("lies outside its class", *place, "representative_tokens")
            lower = upper or lower
