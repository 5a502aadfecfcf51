"""A long answer in small pieces, between which requests are served."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from dolphin_router.http.response import Response


class Slices:
    """Sends pieces as they are made, one in each round of the event loop, as fast as the client reads them."""

    def __init__(self, response: Response, pieces: Iterator[bytes], headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Begin the answer."""
        self._response = response
        self._pieces = pieces
        self._is_paused = False
        self._is_over = False
        response.start(200, headers, length=None)
        self._handle = asyncio.get_running_loop().call_soon(self._send)

    def on_client_gone(self) -> None:
        """Stop."""
        self._is_over = True
        self._handle.cancel()

    def pause(self) -> None:
        """Send no more until the client has caught up."""
        self._is_paused = True

    def resume(self) -> None:
        """Go on."""
        if self._is_paused and not self._is_over:
            self._is_paused = False
            self._handle = asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        if self._is_paused or self._is_over:
            return
        piece = next(self._pieces, None)
        if piece is None:
            self._is_over = True
            self._response.finish()
            return
        self._response.send(piece)
        self._handle = asyncio.get_running_loop().call_soon(self._send)
