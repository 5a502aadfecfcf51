"""Answers in ASGI's form."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.types import Receive, Send

from dolphin_sim.emulator.errors import ApiError
from dolphin_sim.emulator.received import Received

Headers = Sequence[tuple[bytes, bytes]]


async def read_whole_body(receive: Receive) -> bytes | None:
    """Return a request's body; None when the client leaves before it is there."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message["body"])
        if not message["more_body"]:
            return b"".join(parts)


async def send_body(
    send: Send, status: int, body: bytes, *, headers: Headers = (), content_type: bytes = b"application/json"
) -> None:
    """Send an answer of known length."""
    length = str(len(body)).encode()
    head = [(b"content-type", content_type), (b"content-length", length), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, received: Received, error: ApiError, headers: Headers = ()) -> None:
    """Send an error in OpenAI's form, and note it."""
    received.status = error.status
    await send_body(send, error.status, error.body(), headers=headers)
    received.finish("answered")


async def send_json(send: Send, received: Received, document: object, *, status: int = 200) -> None:
    """Send a document."""
    received.status = status
    await send_body(send, status, msgspec.json.encode(document))
    received.finish("answered")
