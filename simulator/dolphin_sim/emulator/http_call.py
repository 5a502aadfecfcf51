"""A single HTTP request from one emulated worker to another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import NamedTuple

from dolphin_sim.emulator.errors import KvLoadError


class HttpAnswer(NamedTuple):
    """What came back."""

    status: int
    content_type: str
    body: bytes

    def document(self) -> dict[str, object]:
        """Return the body, read as a JSON object.

        Raises:
            KvLoadError: it is none.
        """
        try:
            document = json.loads(self.body)
        except ValueError as error:
            raise KvLoadError(f"an answer with status {self.status} is no JSON: {self.body[:200]!r}") from error
        if not isinstance(document, dict):
            raise KvLoadError(f"an answer with status {self.status} is no JSON object: {self.body[:200]!r}")
        return document


async def http_call(
    host: str, port: int, path: str, *, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> HttpAnswer:
    """Send ``GET``, or ``POST`` where there is a body, and return the answer; cancelled, close the connection.

    Raises:
        OSError: the other cannot be reached, or breaks off.
        ValueError: it does not answer in HTTP.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", f"host: {host}:{port}", "connection: close"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if body is not None:
            lines.append(f"content-length: {len(body)}")
        writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b""))
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            status_line, *fields = head.decode("latin-1").split("\r\n")
            known = dict(field.lower().split(": ", 1) for field in fields if ": " in field)
            content = await reader.readexactly(int(known.get("content-length", "0")))
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError(f"{host}:{port} broke off") from error
        return HttpAnswer(int(status_line.split(" ")[1]), known.get("content-type", ""), content)
    finally:
        writer.transport.abort()
