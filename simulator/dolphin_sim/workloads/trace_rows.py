"""Lines of a trace file, and what can be wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

Row = TypeVar("Row")


class TraceError(ValueError):
    """A trace file that cannot be used: names the file, the line (0 = the file as a whole) and the reason."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}:{line}: {reason}" if line else f"{path}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


class Line(NamedTuple):
    """One line of a text file without its end."""

    number: int
    """From 1."""
    text: str
    complete: bool
    """Whether the line ends in a line break; only the last can lack it."""


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of the file that are not blank.

    Raises:
        TraceError: a line that is not UTF-8.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            complete = raw.endswith(b"\n")
            try:
                # Some tools put a byte-order mark in front of the first line.
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                # A file cut in the middle of a character is a truncated last line like any other.
                if complete:
                    raise TraceError(path, number, f"not UTF-8 text: {error}") from None
                text = raw.decode("utf-8", errors="replace").strip()
            if text:
                yield Line(number, text, complete)


def parse_rows(
    path: Path, lines: Iterator[Line], parse: Callable[[str], Row], *, truncated_ok: bool
) -> tuple[list[tuple[int, Row]], int]:
    """Line number and parsed value of each line, and the number of lines dropped (0 or 1).

    The one line that may be dropped is a last line without a line break that does not parse: a download or a copy that
    was cut short.

    Raises:
        TraceError: parse raised a ValueError; its message is the reason.
    """
    rows = []
    for line in lines:
        try:
            rows.append((line.number, parse(line.text)))
        except ValueError as error:
            if line.complete:
                raise TraceError(path, line.number, str(error)) from None
            if truncated_ok:
                return rows, 1
            reason = f"the last line is truncated ({error}); fetch the file again, or accept it with truncated_ok"
            raise TraceError(path, line.number, f"{reason} to use the {len(rows)} rows before it") from None
    return rows, 0
