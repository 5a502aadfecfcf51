"""One admin port for several routers that share a port."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httptools
import msgspec

from dolphin_router.http.request import HttpRequest
from dolphin_router.http.response import Response
from dolphin_router.http.server_connection import ClientGone
from dolphin_router.metrics import merge

from .handler import has_token

TIMEOUT_S: Final = 5.0


class _Answer:
    """Collects the parts of an answer for httptools."""

    def __init__(self) -> None:
        self.content_type = b"text/plain"
        self.body: list[bytes] = []
        self.is_complete = False
        self.on_body = self.body.append

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self.content_type = value

    def on_message_complete(self) -> None:
        self.is_complete = True


class _Reply:
    def __init__(self, status: int, content_type: bytes, body: bytes) -> None:
        self.status = status
        self.content_type = content_type
        self.body = body


class _Asking:
    """A request that is put to the routers on behalf of a client, who may leave meanwhile."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def on_client_gone(self) -> None:
        self._task.cancel()

    def pause(self) -> None:
        """Answers here are sent whole."""

    def resume(self) -> None:
        """Answers here are sent whole."""


class SeveralHandler:
    """Puts every request to the routers and makes one answer of theirs.

    Metrics are added up, recorded requests put one behind the other, statuses listed. A change goes to all. What is the
    same everywhere, such as the table, is asked of the first.
    """

    def __init__(self, sockets: Sequence[Path], *, token: bytes | None) -> None:
        """Serve; ``sockets`` are the routers' own admin ports, ``token`` as for ``AdminHandler``."""
        self._sockets = sockets
        self._token = token

    def handle(self, request: HttpRequest, response: Response) -> ClientGone | None:
        """Begin to answer."""
        if request.path == b"/health":
            response.answer(200, b"")
            return None
        if self._token is not None and not has_token(request, self._token):
            response.error(401, "the admin port needs its token", [(b"www-authenticate", b"Bearer")])
            return None
        return _Asking(asyncio.get_running_loop().create_task(self._answer(request, response)))

    async def _answer(self, request: HttpRequest, response: Response) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                if request.method == b"GET" and request.path not in (b"/metrics", b"/recorded", b"/status"):
                    replies = [await _ask(self._sockets[0], request)]
                else:
                    replies = await asyncio.gather(*(_ask(socket, request) for socket in self._sockets))
        except (OSError, TimeoutError, httptools.HttpParserError) as error:
            response.error(503, f"a router process does not answer: {error or 'in time'}", [(b"retry-after", b"1")])
            return
        first = replies[0]
        worst = max(replies, key=lambda reply: reply.status)
        if worst.status != 200:
            first = worst
        elif request.path == b"/metrics":
            first.body = merge([reply.body for reply in replies])
        elif request.path == b"/recorded":
            first.body = b"".join(reply.body for reply in replies)
        elif request.path == b"/status":
            first.body = msgspec.json.encode({"processes": [msgspec.Raw(reply.body) for reply in replies]})
        response.answer(first.status, first.body, [(b"content-type", first.content_type)])


async def _ask(socket: Path, request: HttpRequest) -> _Reply:
    """Put a request to one router."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        writer.write(
            b"%b %b HTTP/1.1\r\nhost: router\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
            % (request.method, request.target, len(request.body), request.body)
        )
        answer = _Answer()
        parser = httptools.HttpResponseParser(answer)
        while not answer.is_complete:
            data = await reader.read(1 << 18)
            if not data:
                raise OSError("it closed the connection")
            parser.feed_data(data)
        return _Reply(parser.get_status_code(), answer.content_type, b"".join(answer.body))
    finally:
        writer.close()
