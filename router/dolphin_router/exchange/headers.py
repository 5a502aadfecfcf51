"""Which headers go on to workers and which come back."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, NamedTuple

from dolphin_router.http.request import Headers

# RFC 9110, section 7.6.1: these concern one connection.
_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

# Ours to write, or meant for this hop. Accept-Encoding is replaced, so that answers can be relayed without unpacking.
_OURS: Final = frozenset({b"accept-encoding", b"content-length", b"expect", b"host", b"http2-settings"})

# By these a gateway and its sidecars steer. A client may not: it could name any host as its prefill worker.
_STEERING: Final = frozenset(
    {
        b"x-data-parallel-host-port",
        b"x-encoder-hosts-ports",
        b"x-kv-cache-source-host-port",
        b"x-override-bootstrap-host",
        b"x-override-bootstrap-port",
        b"x-override-bootstrap-room",
        b"x-override-disagg-prefill-dp-rank",
        b"x-override-rid",
        b"x-override-routed-dp-rank",
        b"x-prefiller-host-port",
    }
)
_STEERING_PREFIXES: Final = (b"x-dolphin-", b"x-gateway-")

_NOT_FORWARDED: Final = _HOP_BY_HOP | _OURS | _STEERING
_NOT_RETURNED: Final = _HOP_BY_HOP | {b"content-length"}


def forwarded_headers(headers: Headers) -> bytes:
    """Return the lines of a client's headers that workers get, with an ``x-request-id`` in any case."""
    lines: list[bytes] = []
    has_request_id = False
    named: list[bytes] = []
    for name, value in headers:
        lowered = name.lower()
        if lowered in _NOT_FORWARDED:
            if lowered == b"connection":
                named.extend(token.strip().lower() for token in value.split(b","))
            continue
        if lowered.startswith(_STEERING_PREFIXES):
            continue
        if lowered == b"x-request-id":
            has_request_id = True
        lines.append(b"%b: %b\r\n" % (name, value))
    if named:
        lines = [line for line in lines if line.partition(b":")[0].lower() not in named]
        has_request_id = has_request_id and b"x-request-id" not in named
    if not has_request_id:
        lines.append(b"x-request-id: %032x\r\n" % random.getrandbits(128))
    lines.append(b"accept-encoding: identity\r\n")
    return b"".join(lines)


def request_bytes(
    method: bytes,
    target: bytes,
    host: bytes,
    forwarded: bytes,
    body: bytes,
    added: Sequence[tuple[bytes, bytes]] = (),
) -> bytes:
    """Return a whole request for a worker; ``forwarded`` as :func:`forwarded_headers` makes it. ``added`` headers
    replace those of the same name."""
    extra = b""
    if added:
        names = {name.lower() for name, _ in added}
        lines = forwarded.split(b"\r\n")
        forwarded = b"\r\n".join([line for line in lines if line.partition(b":")[0].lower() not in names])
        extra = b"".join([b"%b: %b\r\n" % header for header in added])
    if not body and method in (b"GET", b"HEAD"):
        return b"%b %b HTTP/1.1\r\nhost: %b\r\n%b%b\r\n" % (method, target, host, forwarded, extra)
    return b"%b %b HTTP/1.1\r\nhost: %b\r\n%b%bcontent-length: %d\r\n\r\n%b" % (
        method,
        target,
        host,
        forwarded,
        extra,
        len(body),
        body,
    )


class AnswerHeaders(NamedTuple):
    """What the head of a worker's answer says."""

    returned: Headers
    """For the client."""
    length: int | None
    """Bytes of the body, where the worker said so."""
    is_event_stream: bool


def answer_headers(headers: Headers) -> AnswerHeaders:
    """Sort a worker's headers."""
    returned: Headers = []
    length: int | None = None
    is_event_stream = False
    named: list[bytes] = []
    for header in headers:
        lowered = header[0].lower()
        if lowered == b"content-length":
            length = int(header[1])
        elif lowered == b"connection":
            named.extend(token.strip().lower() for token in header[1].split(b","))
        elif lowered not in _NOT_RETURNED:
            returned.append(header)
            if lowered == b"content-type":
                is_event_stream = header[1].lower().startswith(b"text/event-stream")
    if named:
        returned = [header for header in returned if header[0].lower() not in named]
    return AnswerHeaders(returned, length, is_event_stream)
