"""Answering requests on the admin port."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol
from urllib.parse import parse_qs

import msgspec

from dolphin_router.contract import RoutingTable, write_table
from dolphin_router.explanation import explain, explanation_json
from dolphin_router.features import Features, effective_tokens
from dolphin_router.http.request import HttpRequest
from dolphin_router.http.response import Response
from dolphin_router.http.server_connection import ClientGone
from dolphin_router.load import Load

from .slices import Slices

_JSON: Final = [(b"content-type", b"application/json")]
_TEXT: Final = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]
_LINES: Final = [(b"content-type", b"application/x-ndjson")]
_LEVELS: Final = ("debug", "info", "warning", "error")
_MOST_TOKENS: Final = 10**12


class RouterView(Protocol):
    """What the admin port shows of a router."""

    def metrics(self) -> Iterator[bytes]:
        """Yield the metrics in Prometheus's text format, in small pieces."""

    def recorded(self) -> Iterator[bytes]:
        """Yield the recorded requests as lines of JSON, the oldest first, in small pieces."""

    def table(self) -> RoutingTable | None:
        """Return the table in use."""

    def status(self) -> Mapping[str, Any]:
        """Return workers, table and reloads as a person wants to see them."""


class _BadQuery(ValueError):
    """A query cannot be used; the message is for the caller."""


class AdminHandler:
    """Serves one router's admin port."""

    def __init__(self, view: RouterView, *, token: bytes | None) -> None:
        """Serve.

        Args:
            view: the router.
            token: asked for as ``Authorization: Bearer``; none where the port needs no protection.
        """
        self._view = view
        self._token = token
        self._routes: dict[tuple[bytes, bytes], Callable[[HttpRequest, Response], ClientGone | None]] = {
            (b"GET", b"/metrics"): self._metrics,
            (b"GET", b"/recorded"): self._recorded,
            (b"GET", b"/table"): self._table,
            (b"GET", b"/explain"): self._explain,
            (b"GET", b"/status"): self._status,
            (b"GET", b"/log-level"): self._log_level,
            (b"PUT", b"/log-level"): self._set_log_level,
        }

    def handle(self, request: HttpRequest, response: Response) -> ClientGone | None:
        """Begin to answer."""
        path = request.path
        if path == b"/health":
            response.answer(200, b"")
            return None
        if self._token is not None and not has_token(request, self._token):
            response.error(401, "the admin port needs its token", [(b"www-authenticate", b"Bearer")])
            return None
        route = self._routes.get((request.method, path))
        if route is not None:
            try:
                return route(request, response)
            except _BadQuery as error:
                response.error(400, str(error))
                return None
        methods = [method for method, known in self._routes if known == path]
        if methods:
            response.error(405, f"this path takes {b', '.join(methods).decode()}", [(b"allow", b", ".join(methods))])
        else:
            paths = sorted({known.decode() for _, known in self._routes})
            response.error(404, f"no such path; there are /health, {', '.join(paths)}")
        return None

    def _metrics(self, request: HttpRequest, response: Response) -> ClientGone:
        return Slices(response, self._view.metrics(), _TEXT)

    def _recorded(self, request: HttpRequest, response: Response) -> ClientGone:
        return Slices(response, self._view.recorded(), _LINES)

    def _table(self, request: HttpRequest, response: Response) -> None:
        response.answer(200, write_table(self._required_table()), _JSON)

    def _status(self, request: HttpRequest, response: Response) -> None:
        response.answer(200, msgspec.json.encode(self._view.status()), _JSON)

    def _explain(self, request: HttpRequest, response: Response) -> None:
        table = self._required_table()
        query = parse_qs(request.target.partition(b"?")[2].decode("ascii", "replace"), keep_blank_values=True)
        prompt = _tokens(query, "prompt_tokens", None)
        prefill_cached = _tokens(query, "prefill_cached", 0)
        decode_cached = _tokens(query, "decode_cached", 0)
        output = _tokens(query, "output_tokens", None)
        load = Load(
            _tokens(query, "prefill_queue_tokens", 0),
            _tokens(query, "decode_queue_tokens", 0),
            _tokens(query, "running_decodes", 0),
        )
        if query:
            raise _BadQuery(f"the query has an unknown name {next(iter(query))!r}")
        features = Features(
            prompt, effective_tokens(prompt, prefill_cached), effective_tokens(prompt, decode_cached), output
        )
        explanation = explanation_json(table, explain(table, features, load))
        response.answer(200, msgspec.json.encode(explanation), _JSON)

    def _log_level(self, request: HttpRequest, response: Response) -> None:
        level = logging.getLevelName(logging.getLogger("dolphin_router").getEffectiveLevel())
        response.answer(200, f"{level.lower()}\n".encode(), _TEXT)

    def _set_log_level(self, request: HttpRequest, response: Response) -> None:
        level = request.body.decode("ascii", "replace").strip().lower()
        if level not in _LEVELS:
            raise _BadQuery(f"log level {level!r} is none of {', '.join(_LEVELS)}")
        logging.getLogger("dolphin_router").setLevel(level.upper())
        response.answer(200, f"{level}\n".encode(), _TEXT)

    def _required_table(self) -> RoutingTable:
        table = self._view.table()
        if table is None:
            raise _BadQuery("no table is in use: requests go the fallback's way")
        return table


def has_token(request: HttpRequest, token: bytes) -> bool:
    """Return whether a request carries the admin port's token."""
    given = request.header(b"authorization") or b""
    scheme, _, value = given.partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(value.strip(), token)


def _tokens(query: dict[str, list[str]], name: str, default: int | None) -> int:
    values = query.pop(name, None)
    if values is None:
        if default is None:
            raise _BadQuery(f"{name} is missing: give ?prompt_tokens=…&output_tokens=…")
        return default
    text = values[-1]
    if not (text.isascii() and text.isdecimal()) or int(text[:16]) > _MOST_TOKENS:
        raise _BadQuery(f"{name} is {text!r}: give a number of tokens from 0 to 10¹²")
    return int(text)
