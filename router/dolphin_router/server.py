"""Listening for clients, and stopping without cutting an answer."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

from .http.deadlines import Deadlines
from .http.limits import HttpLimits
from .http.server_connection import Handler, ServerConnection

BACKLOG = 2048

CUT_S = 1.0
"""For connections that were cut to tell those who answered on them."""


class Server:
    """One listening socket with all its connections."""

    def __init__(self, handler: Handler, *, loop: asyncio.AbstractEventLoop, limits: HttpLimits) -> None:
        self.loop = loop
        self.limits = limits
        self.handler = handler
        self.deadlines = Deadlines(loop)
        self.connections: set[ServerConnection] = set()
        self.is_stopping = False
        self._server: asyncio.Server | None = None

    async def start(
        self, host: str, port: int, *, tls: ssl.SSLContext | None = None, shares_port: bool = False
    ) -> None:
        """Begin to listen.

        Args:
            host: address to listen on.
            port: 0 for any free one.
            tls: for HTTPS.
            shares_port: whether other processes listen on the same port (SO_REUSEPORT).

        Raises:
            OSError: the address cannot be used.
        """
        self._server = await self.loop.create_server(
            lambda: ServerConnection(self),
            host,
            port,
            ssl=tls,
            # A client that does not finish its handshake holds a connection as one does that sends no head.
            ssl_handshake_timeout=None if tls is None else self.limits.head_timeout_s,
            backlog=BACKLOG,
            reuse_port=shares_port or None,
        )

    async def start_unix(self, path: Path) -> None:
        """Begin to listen on a Unix socket.

        Raises:
            OSError: the path cannot be used.
        """
        path.unlink(missing_ok=True)
        self._server = await self.loop.create_unix_server(lambda: ServerConnection(self), str(path))

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._server is not None
        listener: socket.socket = self._server.sockets[0]
        port: int = listener.getsockname()[1]
        return port

    async def stop(self, *, patience_s: float, hurry: asyncio.Event | None = None) -> int:
        """Accept nothing new, let requests that are under way end, then close. Return how many answers were cut.

        Args:
            patience_s: how long to wait for them.
            hurry: ends the waiting when it is set.
        """
        self.is_stopping = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close_when_idle()
        await self._wait_for_connections(patience_s, hurry)
        cut = sum(connection.is_answering for connection in self.connections)
        for connection in list(self.connections):
            connection.abort()
        await self._wait_for_connections(CUT_S)
        self.deadlines.close()
        return cut

    async def _wait_for_connections(self, limit_s: float, hurry: asyncio.Event | None = None) -> None:
        until_s = self.loop.time() + limit_s
        while self.connections and self.loop.time() < until_s and not (hurry is not None and hurry.is_set()):
            await asyncio.sleep(0.01)
