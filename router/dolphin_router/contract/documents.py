"""Documents as bytes and as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

import rfc8785
from pydantic import ValidationError

from dolphin_router.atomic_file import replace_file

from .errors import DocumentError, refusal
from .model import MOST_BYTES, DocumentPart
from .table import RoutingTable

Part = TypeVar("Part", bound=DocumentPart)

_MAKE_ANEW = "write it anew with the command that made it"


def read_document(model: type[Part], data: bytes | str, *, source: str) -> Part:
    """Return the document of this model that ``data`` holds.

    Args:
        model: the kind of document.
        data: JSON, UTF-8.
        source: where it came from, for the message.

    Raises:
        DocumentError: the data is not such a document, or not one that this release can use; the message names the
            source, the field, what is wrong and what to do.
    """
    try:
        encoded = data.encode() if isinstance(data, str) else data
        if len(encoded) > MOST_BYTES:
            raise _refused(source, f"is longer than {MOST_BYTES} bytes", "give the right file, which is much shorter")
        text = encoded.decode()
    except UnicodeError as error:
        raise _refused(source, f"is not UTF-8: {error}", _MAKE_ANEW) from error
    try:
        document = model.model_validate_json(encoded)
    except ValidationError as error:
        raise refusal(error, source=source) from error
    _refuse_repeated_keys(text, source)
    return document


def load_document(model: type[Part], path: str | Path) -> Part:
    """Return the document in a file.

    Raises:
        DocumentError: as :func:`read_document`, and when the file cannot be read.
    """
    source = str(path)
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise _refused(source, f"cannot be read: {reason}", "check the path") from error
    return read_document(model, data, source=source)


def write_document(document: DocumentPart) -> bytes:
    """Return the document as canonical JSON (RFC 8785) and a newline: equal documents give equal bytes.

    Raises:
        ValueError: the document is longer than :data:`MOST_BYTES`, so that it would be refused when it is read.
    """
    data = rfc8785.dumps(document.model_dump(mode="json")) + b"\n"
    if len(data) > MOST_BYTES:
        kind = type(document).__name__
        raise ValueError(f"a {kind} of {len(data):,} bytes could not be read again: {MOST_BYTES:,} are the most")
    return data


def save_document(path: str | Path, document: DocumentPart) -> None:
    """Write a document to a file. Whoever reads the path meanwhile sees the old content or the new, never a part.

    Raises:
        OSError: the file cannot be written; what was at the path stays.
        ValueError: as :func:`write_document`.
    """
    replace_file(path, write_document(document))


def read_table(data: bytes | str, *, source: str) -> RoutingTable:
    """Return the table that ``data`` holds; see :func:`read_document`."""
    return read_document(RoutingTable, data, source=source)


def load_table(path: str | Path) -> RoutingTable:
    """Return the table in a file; see :func:`load_document`."""
    return load_document(RoutingTable, path)


def write_table(table: RoutingTable) -> bytes:
    """Return the table as bytes; see :func:`write_document`."""
    return write_document(table)


def save_table(path: str | Path, table: RoutingTable) -> None:
    """Write the table to a file; see :func:`save_document`."""
    save_document(path, table)


def _refused(source: str, problem: str, remedy: str) -> DocumentError:
    return DocumentError(source=source, field="", problem=problem, remedy=remedy)


class _RepeatedKey:
    """Stands in a parsed document for an object that has one key twice."""

    def __init__(self, key: str) -> None:
        self.key = key


def _refuse_repeated_keys(text: str, source: str) -> None:
    """Refuse a document with the same key twice in one object: parsers differ in which of the two they take.

    The document has been validated, so it is no deeper than a table is.
    """

    def unique(pairs: list[tuple[str, object]]) -> object:
        keys: set[str] = set()
        for key, _ in pairs:
            if key in keys:
                return _RepeatedKey(key)
            keys.add(key)
        return dict(pairs)

    def search(value: object, path: str) -> None:
        if isinstance(value, _RepeatedKey):
            field = f"{path}.{value.key}" if path else value.key
            raise DocumentError(source=source, field=field, problem="is there twice", remedy="keep the right one")
        if isinstance(value, dict):
            for key, part in value.items():
                search(part, f"{path}.{key}" if path else key)
        elif isinstance(value, list):
            for index, part in enumerate(value):
                search(part, f"{path}[{index}]")

    search(json.loads(text, object_pairs_hook=unique), "")
