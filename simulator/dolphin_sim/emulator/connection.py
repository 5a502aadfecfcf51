"""uvicorn's HTTP/1.1 connection, with the faults of a worker that breaks connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from dolphin_sim.emulator.faults import Faults

_LINGER_NOT = struct.pack("ii", 1, 0)
# As vLLM starts uvicorn.
_KEEP_ALIVE_S = 5
_BACKLOG = 2048
_PATIENCE_S = 5.0


class Connection(HttpToolsProtocol):
    """One client's connection. Finds the worker's faults in the state of the application."""

    _requests = 0

    def on_message_begin(self) -> None:
        """Break the connection here when a fault says so."""
        super().on_message_begin()
        self.scope["connection"] = self  # type: ignore[typeddict-unknown-key]
        self._requests += 1
        faults: Faults = self.app_state["faults"]
        if faults.take("die-after-accept") or (self._requests > 1 and faults.take("close-idle")):
            self.reset()

    def reset(self) -> None:
        """End the connection with a reset, as when a process dies."""
        connected = self.transport.get_extra_info("socket")
        if connected is not None:
            with contextlib.suppress(OSError):
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        self.transport.abort()


class HttpListener:
    """Accepts connections on one port; can stop to and begin again.

    Args:
        app: serves them.
        faults: of the worker.
        host: address to listen on.
        port: 0 for any free one.
    """

    def __init__(self, app: ASGIApp, faults: Faults, *, host: str, port: int) -> None:
        self._config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            http=Connection,
        )
        self._config.load()
        self._state = ServerState()
        self._state.default_headers = [(b"server", b"uvicorn")]
        self._app_state = {"faults": faults}
        self._host = host
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self.port = port

    @property
    def connections(self) -> int:
        """Open ones."""
        return len(self._state.connections)

    def listen(self) -> socket.socket:
        """Let clients connect; they are served from :meth:`open` on.

        Raises:
            OSError: the port is taken, or the host has no such address.
        """
        if self._socket is None:
            family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
            # asyncio sends small answers without delay only on sockets that say that they are TCP's.
            listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            try:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.bind((self._host, self.port))
                listening.listen(_BACKLOG)
            except OSError as error:
                listening.close()
                raise OSError(error.errno, os.strerror(error.errno or 0), f"{self._host}:{self.port}") from error
            self._socket = listening
            self.port = listening.getsockname()[1]
        return self._socket

    async def open(self) -> None:
        """Accept connections; where they are accepted already, do nothing."""
        listening = self.listen()
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(self._connection, sock=listening, backlog=_BACKLOG)

    def refuse(self) -> None:
        """Accept no more connections; those that are open stay."""
        if self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()
        self._server = self._socket = None

    async def close(self) -> None:
        """Refuse, and end all connections."""
        self.refuse()
        for connection in list(self._state.connections):
            connection.transport.abort()
        # Each request ends by itself when it sees that its client has left.
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=_PATIENCE_S)

    def _connection(self) -> Connection:
        return Connection(self._config, self._state, self._app_state)
