"""Saying that nothing more will be sent, while still reading."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket


def half_close(transport: asyncio.Transport) -> bool:
    """End the sending side of a connection. False, and nothing done, where that is not possible: over TLS, while
    something is still unsent, or when the other side is gone.

    Done on the socket itself: a transport's ``write_eof`` reports it as an error of the program that the other side has
    just reset the connection, which it may at any moment.
    """
    if transport.is_closing() or not transport.can_write_eof() or transport.get_write_buffer_size():
        return False
    # uvloop's stand-in for a socket has no shutdown; a second descriptor of the same socket has.
    with contextlib.suppress(OSError):
        descriptor = os.dup(transport.get_extra_info("socket").fileno())
        with socket.socket(fileno=descriptor) as raw:
            raw.shutdown(socket.SHUT_WR)
            return True
    return False
