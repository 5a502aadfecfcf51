"""What a worker was sent, for tests to look at."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_RECEIVED = 10_000
MOST_RECEIVED_BYTES = 64 << 20


@dataclass
class Received:
    """One request. The worker keeps the last 10,000, or as many as have 64 MiB of bodies."""

    method: str
    path: str
    raw_headers: list[tuple[bytes, bytes]]
    arrived_s: float
    """On the event loop's clock."""
    body: bytes = b""
    status: int | None = None
    """That it was answered with; None when it was not."""
    end: Literal["open", "answered", "left", "fault"] = "open"
    """``left``: the client did, before the answer was whole."""
    ended_s: float | None = None
    headers: dict[str, str] = field(default_factory=dict)
    """Names in lower case; of repeated ones the last."""

    @property
    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)

    def finish(self, end: Literal["answered", "left", "fault"]) -> None:
        """Note how it ended. The first end counts."""
        if self.end == "open":
            self.end = end
            self.ended_s = asyncio.get_running_loop().time()


class Recorder:
    """An ASGI application that writes down what passes to and from another."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.requests: deque[Received] = deque()
        self._kept_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        raw = list(scope["headers"])
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in raw}
        now_s = asyncio.get_running_loop().time()
        received = Received(scope["method"], scope["path"], raw, now_s, headers=headers)
        if len(self.requests) == MOST_RECEIVED:
            self._kept_bytes -= len(self.requests.popleft().body)
        self.requests.append(received)
        scope["received"] = received

        async def noted_receive() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                received.finish("left")
            else:
                received.body += message["body"]
                self._keep_bytes(len(message["body"]))
            return message

        async def noted_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                received.status = message["status"]
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                received.finish("answered")

        await self._app(scope, noted_receive, noted_send)

    def _keep_bytes(self, added: int) -> None:
        self._kept_bytes += added
        if self._kept_bytes > MOST_RECEIVED_BYTES:
            # Whoever looks at the requests may have cleared them.
            self._kept_bytes = sum(len(request.body) for request in self.requests)
        while self._kept_bytes > MOST_RECEIVED_BYTES and len(self.requests) > 1:
            self._kept_bytes -= len(self.requests.popleft().body)
