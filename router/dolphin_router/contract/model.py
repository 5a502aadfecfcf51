"""What all parts of a document have in common: strict types, no unknown fields, finite numbers, no changes."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

LARGEST_INTEGER = 2**53 - 1
"""RFC 8785 (section 3.1, I-JSON) has no larger integers: a double holds no more of them exactly."""

MOST_BYTES = 1 << 20
"""Of a document: as much as a ConfigMap can hold. Nothing longer is read, and nothing longer is written."""

Count = Annotated[int, Field(ge=0, le=LARGEST_INTEGER)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
NO_CONTROL_CHARACTERS = r"^[^\x00-\x1f\x7f-\x9f]*$"
"""Text is shown on terminals, which control characters command."""

Name = Annotated[str, Field(min_length=1, max_length=253, pattern=NO_CONTROL_CHARACTERS)]
"""253 characters, as long as the longest name of a Kubernetes object."""


class DocumentPart(BaseModel):
    """One JSON object of a document. Every field is written, null included, so that equal values have equal bytes.

    Building a part from wrong values raises ``pydantic.ValidationError``.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


def inconsistency(problem: str, *location: str | int) -> ValidationError:
    """Return the error that a part raises when a field is right by itself but does not fit the others.

    Args:
        problem: what is wrong, to follow the field's path: "is the same as clusters[0].centre".
        location: the field's path inside the part.
    """
    error = PydanticCustomError("inconsistent", "{problem}", {"problem": problem})
    return ValidationError.from_exception_data("document", [InitErrorDetails(type=error, loc=location, input=None)])
