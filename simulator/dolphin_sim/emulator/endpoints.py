"""The paths of a worker."""

from __future__ import annotations

import hmac
import json
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp, Receive, Scope, Send

from dolphin_sim.emulator.answers import chat_prompt
from dolphin_sim.emulator.errors import ApiError
from dolphin_sim.emulator.generation_endpoint import GenerationEndpoint
from dolphin_sim.emulator.received import Received
from dolphin_sim.emulator.request_body import read_json
from dolphin_sim.emulator.responses import read_whole_body, send_body, send_error, send_json
from dolphin_sim.emulator.tokens import VOCABULARY, detokenize, tokenize

if TYPE_CHECKING:
    from dolphin_sim.emulator.worker import EmulatedWorker

_EMBEDDING_SIZE = 8
# As vLLM's version is reported by the workers that these imitate.
_VERSION = "0.33.0"

Document = Callable[[dict[str, Any]], Any]
_GUARDED = "/v1"


class Endpoints:
    """The ASGI application of a worker: paths with a fixed method each."""

    def __init__(self, worker: EmulatedWorker) -> None:
        self._worker = worker
        self._generations: dict[str, ASGIApp] = {
            "/v1/completions": GenerationEndpoint(worker, "completion"),
            "/v1/chat/completions": GenerationEndpoint(worker, "chat"),
        }
        self._gets: dict[str, Callable[[], Any]] = {
            "/v1/models": self._models,
            "/version": lambda: {"version": _VERSION},
            "/load": lambda: {"server_load": worker.engine.batch.running_count},
            "/emulator/ledger": worker.ledger.document,
        }
        self._posts: dict[str, Document] = {
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
            "/v1/embeddings": self._embeddings,
            "/emulator/faults": self._set_faults,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        received = Received.of(scope)
        self._worker.requests.append(received)
        scope["received"] = received
        try:
            await self._serve(scope, receive, send, received)
        except ApiError as error:
            await send_error(send, received, error)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, received: Received) -> None:
        path, method = scope["path"], scope["method"]
        if path.startswith(_GUARDED) and not self._is_allowed(received):
            await send_json(send, received, {"error": "Unauthorized"}, status=401)
        elif path == "/health" or path == "/ping":
            received.status = 200
            await send_body(send, 200, b"")
            received.finish("answered")
        elif path == "/metrics":
            received.status = 200
            await send_body(send, 200, self._worker.metrics_text(), content_type=CONTENT_TYPE_LATEST.encode())
            received.finish("answered")
        elif path in self._generations or path in self._posts:
            if method != "POST":
                await send_json(send, received, {"detail": "Method Not Allowed"}, status=405)
            elif path in self._generations:
                await self._generations[path](scope, receive, send)
            else:
                await self._post(self._posts[path], receive, send, received)
        elif path == "/reset_prefix_cache":
            self._worker.engine.memory.clear_idle()
            await send_json(send, received, {})
        elif path in self._gets or path in self._worker.engine_paths:
            get = self._gets.get(path) or self._worker.engine_paths[path]
            await send_json(send, received, get())
        else:
            await send_json(send, received, {"detail": "Not Found"}, status=404)

    def _is_allowed(self, received: Received) -> bool:
        key = self._worker.options.api_key
        given = received.headers.get("authorization", "")
        return key is None or hmac.compare_digest(given.encode(), f"Bearer {key}".encode())

    async def _post(self, answer: Document, receive: Receive, send: Send, received: Received) -> None:
        body = await read_whole_body(receive)
        if body is None:
            received.finish("left")
            return
        received.body = body
        await send_json(send, received, answer(read_json(body)))

    def _models(self) -> dict[str, Any]:
        options = self._worker.options
        model = {
            "id": options.model,
            "object": "model",
            "created": 0,
            "owned_by": "vllm",
            "root": options.model,
            "parent": None,
            "max_model_len": options.longest_tokens,
        }
        return {"object": "list", "data": [model]}

    def _tokenize(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt, messages = body.get("prompt"), body.get("messages")
        if (prompt is None) == (messages is None):
            raise ApiError(400, "1 validation error: give either prompt or messages", kind="Bad Request")
        if messages is not None:
            if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
                raise ApiError(400, "1 validation error: messages must be a list of objects", kind="Bad Request")
            tools = json.dumps(body["tools"], sort_keys=True) if body.get("tools") else ""
            prompt = chat_prompt(messages, add_generation_prompt=body.get("add_generation_prompt", True), tools=tools)
        if not isinstance(prompt, str):
            raise ApiError(400, "1 validation error: prompt must be a string", kind="Bad Request")
        tokens = tokenize(prompt)
        return {"count": len(tokens), "max_model_len": self._worker.options.longest_tokens, "tokens": tokens}

    def _detokenize(self, body: dict[str, Any]) -> dict[str, Any]:
        tokens = body.get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(each, int) and 0 <= each < VOCABULARY for each in tokens):
            raise ApiError(400, "1 validation error: tokens must be a list of token numbers", kind="Bad Request")
        return {"prompt": detokenize(tokens)}

    def _embeddings(self, body: dict[str, Any]) -> dict[str, Any]:
        given = body.get("input")
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise ApiError(400, "1 validation error: input must be a string or a list of strings", kind="Bad Request")
        data = [
            {"index": index, "object": "embedding", "embedding": _embedding(text)} for index, text in enumerate(texts)
        ]
        tokens = sum(len(tokenize(text)) for text in texts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
        return {"object": "list", "data": data, "model": self._worker.options.model, "usage": usage}

    def _set_faults(self, body: dict[str, Any]) -> dict[str, Any]:
        faults = body.get("faults")
        if not isinstance(faults, list):
            raise ApiError(400, 'give {"faults": ["500", …]}; an empty list clears all')
        self._worker.faults.clear()
        try:
            for fault in faults:
                self._worker.faults.set(str(fault))
        except ValueError as error:
            raise ApiError(400, str(error)) from error
        return {"faults": faults}


def _embedding(text: str) -> list[float]:
    return [zlib.crc32(f"{place} {text}".encode()) / 2**32 for place in range(_EMBEDDING_SIZE)]
