"""Why a document is refused, in words for the person who has to put it right."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Sequence

from pydantic import ValidationError
from pydantic_core import ErrorDetails

# pydantic puts the chosen member of a union into an error's location; these are the fields that hold one.
_UNION_FIELDS = frozenset({"clustering"})

# pydantic's messages begin with a subject of their own; ours is the field.
_MESSAGE_SUBJECT = re.compile(r"^(Input|Tuple|String) | after validation")


class DocumentError(ValueError):
    """A document that cannot be used.

    Attributes:
        source: where the document came from, a path for instance.
        field: the offending field's path, such as ``decider.clusters[3].centre[2]``; empty for the whole document.
        problem: what is wrong with it.
        remedy: what to do.
    """

    def __init__(self, *, source: str, field: str, problem: str, remedy: str) -> None:
        self.source = source
        self.field = field
        self.problem = problem
        self.remedy = remedy
        subject = f"{field} {problem}" if field else problem
        super().__init__(f"{source}: {subject}; {remedy}")


def refusal(error: ValidationError, *, source: str) -> DocumentError:
    """Return the refusal for the problem in ``error`` that explains most: a wrong version or kind before the rest."""
    details = min(error.errors(include_url=False), key=_rank)
    problem, remedy = _explanation(details)
    return DocumentError(source=source, field=field_path(details["loc"]), problem=problem, remedy=remedy)


def field_path(location: Sequence[str | int]) -> str:
    """Return a location as a person writes it: ``("clusters", 3, "centre")`` is ``clusters[3].centre``."""
    path = ""
    previous: str | int = ""
    for step in location:
        if previous not in _UNION_FIELDS:
            path += f"[{step}]" if isinstance(step, int) else f".{_key(step)}" if path else _key(step)
        previous = step
    return path


def _key(key: str) -> str:
    # Any string can be a key; a message stays one readable line.
    return key if key.isprintable() and len(key) <= 60 else reprlib.repr(key)


def _rank(details: ErrorDetails) -> int:
    # A document of another version or kind has many wrong fields, and only one of them is the reason.
    location = details["loc"]
    if location == ("format",):
        return 0
    if details["type"].startswith("union_tag") or location[-1:] == ("kind",):
        return 1
    return 2


def _explanation(details: ErrorDetails) -> tuple[str, str]:
    """Return the problem and the remedy."""
    kind = details["type"]
    context = details.get("ctx", {})
    given = reprlib.repr(details["input"])
    if kind == "json_invalid":
        return f"is not JSON: {context['error']}", "write it anew with the command that made it"
    if kind == "model_type" and not details["loc"]:
        return "is not a JSON object", "give the path of the right file"
    if kind == "missing":
        return "is missing", "add it, or write it anew with the command that made it"
    if kind == "extra_forbidden":
        return "is not a field of this format", "remove it, or use the release that wrote it"
    if kind == "literal_error":
        problem = f"is {given}, but this release reads {context['expected']}"
        return problem, "use the release that wrote it" if details["loc"] == ("format",) else "correct it"
    if kind == "union_tag_invalid":
        return (
            f"is of kind {reprlib.repr(context['tag'])}, but this release reads {context['expected_tags']}",
            "use the release that wrote it",
        )
    if kind == "inconsistent":
        return details["msg"], "correct it, or write it anew with the command that made it"
    what = _MESSAGE_SUBJECT.sub("", details["msg"])
    return f"{what} (it is {given})", "correct it, or write it anew with the command that made it"
