"""Error answers that the router makes itself, in OpenAI's form."""

from __future__ import annotations

import msgspec

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    502: "upstream_error",
    503: "service_unavailable_error",
    504: "upstream_timeout_error",
}


def error_object(status: int, message: str) -> bytes:
    """Return ``{"error": {...}}`` as JSON."""
    content = {"message": message, "type": _TYPES.get(status, "server_error"), "param": None, "code": status}
    return msgspec.json.encode({"error": content})


def error_event(status: int, message: str) -> bytes:
    """Return the error as a server-sent event: for a stream that has begun, when no status can be sent any more."""
    return b"data: %b\n\n" % error_object(status, message)
