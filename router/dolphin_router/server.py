"""Listening for clients, and stopping without cutting an answer."""

from __future__ import annotations

import asyncio
import socket
import ssl

from .http.deadlines import Deadlines
from .http.limits import HttpLimits
from .http.server_connection import Handler, ServerConnection

BACKLOG = 2048


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
            lambda: ServerConnection(self), host, port, ssl=tls, backlog=BACKLOG, reuse_port=shares_port or None
        )

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._server is not None
        listener: socket.socket = self._server.sockets[0]
        port: int = listener.getsockname()[1]
        return port

    async def stop(self, *, patience_s: float) -> int:
        """Accept nothing new, let answers that are under way end, then close. Return how many were cut.

        Args:
            patience_s: how long to wait for them.
        """
        self.is_stopping = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close_when_idle()
        until_s = self.loop.time() + patience_s
        while self.connections and self.loop.time() < until_s:
            await asyncio.sleep(0.02)
        cut = len(self.connections)
        for connection in list(self.connections):
            connection.abort()
        self.deadlines.close()
        return cut
