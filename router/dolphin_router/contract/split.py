"""How many workers there are on each side."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from .model import DocumentPart

MOST_WORKERS = 1024
"""Of one side. Far above any deployment, low enough that a slip of the keyboard is noticed."""

_TEXT = re.compile(r"([0-9]{1,9})P([0-9]{1,9})D", re.ASCII)

_Workers = Annotated[int, Field(ge=1, le=MOST_WORKERS)]


class Split(DocumentPart):
    """Ready prefill workers and ready decode workers; as text ``2P2D``."""

    prefill: _Workers
    decode: _Workers

    @classmethod
    def parse(cls, text: str) -> Split:
        """Return the split that ``text`` names, ``"2P2D"`` for instance.

        Raises:
            ValueError: the text has another form or a number is out of range; the message names the text.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"split {text!r} is not of the form 2P2D: prefill workers, P, decode workers, D")
        prefill, decode = (int(number) for number in match.groups())
        if not (1 <= prefill <= MOST_WORKERS and 1 <= decode <= MOST_WORKERS):
            raise ValueError(f"split {text!r} is out of range: give 1 to {MOST_WORKERS} workers on each side")
        return cls(prefill=prefill, decode=decode)

    def __str__(self) -> str:
        return f"{self.prefill}P{self.decode}D"
