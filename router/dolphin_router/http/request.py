"""One request as a client sent it."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote_to_bytes

Headers = list[tuple[bytes, bytes]]
"""Names as they were sent, in the order in which they were sent."""


class HttpRequest(NamedTuple):
    """A whole request: its body has arrived."""

    method: bytes
    target: bytes
    """As sent, query included, but in origin form in any case: it begins with a slash or is ``*``."""
    headers: Headers
    body: bytes
    is_http_1_0: bool
    keep_alive: bool
    """Whether the client wants the connection to stay open."""

    @property
    def path(self) -> bytes:
        """The target without its query, its percent signs decoded as workers decode them.

        Otherwise ``/v1/%63ompletions`` would be one path here and another at the worker.
        """
        path = self.target.partition(b"?")[0]
        return unquote_to_bytes(path) if b"%" in path else path

    def header(self, name: bytes) -> bytes | None:
        """Return the value of the first header with this name, given in lower case."""
        for key, value in self.headers:
            if key.lower() == name:
                return value
        return None
