"""Status lines."""

from __future__ import annotations

from http import HTTPStatus


def status_line(status: int) -> bytes:
    """Return the first line of a response, with the standard's phrase where the status has one."""
    return _LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
