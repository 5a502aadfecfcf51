"""The routing table: what a search learned for one split, and all that a router needs to decide by it."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Annotated, Final, Literal

import rfc8785
from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from .deciders import Decider
from .model import Count, DocumentPart, Name, inconsistency
from .output_model import OutputModel
from .provenance import Provenance
from .slo import Slo
from .split import Split

FORMAT: Final = "dolphinrouting.dev/table/v1"

UNDIGESTED_FIELDS = frozenset({"created_at", "digest", "software_version"})
"""Outside the digest: two tables that differ only here decide alike and were learned alike."""


def _rfc3339(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or text[10:11] not in ("T", "t"):
        raise PydanticCustomError("time_format", "should be a time by RFC 3339 such as 2026-01-31T12:00:00Z")
    return text


class PolicyReference(DocumentPart):
    """The RoutingPolicy object that the table was learned for."""

    name: Name
    uid: Name
    generation: Count


class TableContent(DocumentPart):
    """A routing table without its digest. :func:`seal` makes a table of it."""

    format: Literal["dolphinrouting.dev/table/v1"]
    routing_policy: PolicyReference | None
    """Null for tables that were learned outside Kubernetes."""
    split: Split
    slo: Slo
    features: tuple[
        Literal["prompt_tokens"],
        Literal["prefill_effective_tokens"],
        Literal["decode_effective_tokens"],
        Literal["output_tokens"],
    ]
    decider: Decider
    output_model: OutputModel | None
    """Null where the length of answers is known or never guessed."""
    provenance: Provenance
    created_at: Annotated[str, AfterValidator(_rfc3339)]
    software_version: Name


class RoutingTable(TableContent):
    """A routing table. Its digest fits its content: a document whose digest does not is refused."""

    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]

    @model_validator(mode="after")
    def _digest_fits(self) -> RoutingTable:
        expected = content_digest(self)
        if self.digest != expected:
            raise inconsistency(f"does not fit the content, which must have been changed: it has {expected}", "digest")
        return self


def content_digest(content: TableContent) -> str:
    """Return ``sha256:`` and the hash of the content's canonical JSON (RFC 8785) without :data:`UNDIGESTED_FIELDS`."""
    canonical = rfc8785.dumps(content.model_dump(mode="json", exclude=set(UNDIGESTED_FIELDS)))
    return f"sha256:{hashlib.sha256(canonical).hexdigest()}"


def seal(content: TableContent) -> RoutingTable:
    """Return the table with this content and the digest that fits it. A table is sealed anew."""
    fields = {name: getattr(content, name) for name in TableContent.model_fields}
    return RoutingTable(**fields, digest=content_digest(content))
