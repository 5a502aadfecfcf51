"""The paths of a worker, as a Starlette application."""

from __future__ import annotations

import hmac
import zlib
from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from dolphin_sim.emulator.errors import ApiError
from dolphin_sim.emulator.generation_endpoint import GenerationEndpoint
from dolphin_sim.emulator.prompts import chat_tokens
from dolphin_sim.emulator.request_body import TokenizeBody, read_json
from dolphin_sim.emulator.tokens import VOCABULARY, detokenize, tokenize

if TYPE_CHECKING:
    from dolphin_sim.emulator.worker import EmulatedWorker

_EMBEDDING_SIZE = 8
# Of the vLLM that these workers imitate.
_VERSION = "0.33.0"


def make_application(worker: EmulatedWorker) -> ASGIApp:
    """Return the application that serves a worker's requests."""
    endpoints = _Endpoints(worker)
    routes = [
        Route("/v1/completions", GenerationEndpoint(worker, "completion"), methods=["POST"]),
        Route("/v1/chat/completions", GenerationEndpoint(worker, "chat"), methods=["POST"]),
        Route("/v1/models", endpoints.models),
        Route("/v1/embeddings", endpoints.embeddings, methods=["POST"]),
        Route("/tokenize", endpoints.tokenize, methods=["POST"]),
        Route("/detokenize", endpoints.detokenize, methods=["POST"]),
        Route("/health", endpoints.health),
        Route("/ping", endpoints.health),
        Route("/load", endpoints.load),
        Route("/version", endpoints.version),
        Route("/metrics", endpoints.metrics),
        Route("/reset_prefix_cache", endpoints.reset_prefix_cache, methods=["POST"]),
        Route("/emulator/ledger", endpoints.ledger),
        Route("/emulator/faults", endpoints.set_faults, methods=["POST"]),
        *worker.engine.connector.routes(),
    ]
    handlers: dict[Any, Any] = {ApiError: _api_error, HTTPException: _http_error}
    return _Guard(Starlette(routes=routes, exception_handlers=handlers), worker.options.api_key)


class _Guard:
    """Asks for the key on the paths that vLLM guards."""

    def __init__(self, app: ASGIApp, api_key: str | None) -> None:
        self._app = app
        self._key = None if api_key is None else f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._key is not None and scope["path"].startswith("/v1"):
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._key):
                await JSONResponse({"error": "Unauthorized"}, status_code=401)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class _Endpoints:
    def __init__(self, worker: EmulatedWorker) -> None:
        self._worker = worker
        self._options = worker.options

    async def health(self, request: Request) -> Response:
        return Response()

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": _VERSION})

    async def load(self, request: Request) -> Response:
        return JSONResponse({"server_load": self._worker.engine.batch.running_count})

    async def metrics(self, request: Request) -> Response:
        return Response(self._worker.engine.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def models(self, request: Request) -> Response:
        model = {
            "id": self._options.model,
            "object": "model",
            "created": 0,
            "owned_by": "vllm",
            "root": self._options.model,
            "parent": None,
            "max_model_len": self._options.longest_tokens,
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def tokenize(self, request: Request) -> Response:
        body = TokenizeBody.read(await request.body())
        tokens = tokenize(body.prompt) if body.prompt is not None else chat_tokens(body)
        document = {"count": len(tokens), "max_model_len": self._options.longest_tokens, "tokens": tokens}
        return JSONResponse(document)

    async def detokenize(self, request: Request) -> Response:
        tokens = read_json(await request.body()).get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(each, int) and 0 <= each < VOCABULARY for each in tokens):
            raise ApiError(400, "1 validation error: tokens must be a list of token numbers", kind="Bad Request")
        return JSONResponse({"prompt": detokenize(tokens)})

    async def embeddings(self, request: Request) -> Response:
        given = read_json(await request.body()).get("input")
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise ApiError(400, "1 validation error: input must be a string or a list of strings", kind="Bad Request")
        data = [{"index": at, "object": "embedding", "embedding": _embedding(text)} for at, text in enumerate(texts)]
        tokens = sum(len(tokenize(text)) for text in texts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
        return JSONResponse({"object": "list", "data": data, "model": self._options.model, "usage": usage})

    async def reset_prefix_cache(self, request: Request) -> Response:
        self._worker.engine.memory.clear_idle()
        return Response()

    async def ledger(self, request: Request) -> Response:
        return JSONResponse(self._worker.ledger.document())

    async def set_faults(self, request: Request) -> Response:
        faults = read_json(await request.body()).get("faults")
        if not isinstance(faults, list):
            raise ApiError(400, 'give {"faults": ["500", …]}; an empty list clears all')
        self._worker.faults.clear()
        try:
            for fault in faults:
                self._worker.faults.set(str(fault))
        except ValueError as error:
            raise ApiError(400, str(error)) from error
        return JSONResponse({"faults": faults})


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": error.detail}, status_code=error.status_code, headers=error.headers)


def _embedding(text: str) -> list[float]:
    return [zlib.crc32(f"{place} {text}".encode()) / 2**32 for place in range(_EMBEDDING_SIZE)]
