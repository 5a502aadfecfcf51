"""Writing generated tables into a page, between their markers."""

from __future__ import annotations

import re
from collections.abc import Sequence


def markdown(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *body))


def replaced(page: str, name: str, block: str) -> str:
    """Return the page with this between the markers of the name.

    Raises:
        ValueError: the markers are not there exactly once.
    """
    parts = re.split(rf"<!-- table: {name} -->.*?<!-- end of table -->", page, flags=re.DOTALL)
    if len(parts) != 2:
        raise ValueError(f"the markers of table {name} are not there exactly once")
    return f"<!-- table: {name} -->\n\n{block}\n\n<!-- end of table -->".join(parts)
