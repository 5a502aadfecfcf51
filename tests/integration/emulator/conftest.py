"""Emulated workers and a client for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest

from dolphin_sim.emulator import EmulatedWorker, emulated_worker

ASK_FOR_KV = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@dataclass
class Stream:
    """What came of a stream."""

    status: int = 0
    chunks: list[dict[str, Any]] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)
    """When each chunk came, since the request was sent."""
    is_done: bool = False
    broke_off: bool = False

    def text(self, index: int = 0) -> str:
        """The text of one choice."""
        choices = [choice for chunk in self.chunks for choice in chunk["choices"] if choice["index"] == index]
        return "".join(choice.get("text", "") or choice.get("delta", {}).get("content", "") for choice in choices)


class Client:
    """Talks to workers."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http

    async def complete(
        self, worker: EmulatedWorker, *, headers: dict[str, str] | None = None, **body: Any
    ) -> httpx2.Response:
        """Send a completion request, of a chat where there are messages."""
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        return await self.http.post(worker.url + path, json={"model": "emulated", **body}, headers=headers)

    async def stream(self, worker: EmulatedWorker, **body: Any) -> Stream:
        """Send one and read its events."""
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        body = {"model": "emulated", "stream": True, **body}
        result = Stream()
        clock = asyncio.get_running_loop().time
        sent_s = clock()
        try:
            async with self.http.stream("POST", worker.url + path, json=body) as response:
                result.status = response.status_code
                async for line in response.aiter_lines():
                    if line == "data: [DONE]":
                        result.is_done = True
                    elif line.startswith("data: "):
                        result.chunks.append(json.loads(line.removeprefix("data: ")))
                        result.at_s.append(clock() - sent_s)
        except (httpx2.ReadError, httpx2.RemoteProtocolError):
            result.broke_off = True
        return result

    async def prefill(
        self, worker: EmulatedWorker, prompt: str | list[int], *, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Have a prompt's KV cache kept and return where it is."""
        answer = await self.complete(
            worker, prompt=prompt, max_tokens=1, kv_transfer_params=ASK_FOR_KV, headers=headers
        )
        assert answer.status_code == 200, answer.text
        parameters: dict[str, Any] = answer.json()["kv_transfer_params"]
        return parameters


@asynccontextmanager
async def _client() -> AsyncIterator[Client]:
    async with httpx2.AsyncClient(timeout=20.0) as http:
        yield Client(http)


@pytest.fixture
def open_client() -> Callable[[], AbstractAsyncContextManager[Client]]:
    """A function that opens a client."""
    return _client


Scene = Callable[[Client, EmulatedWorker], Awaitable[None]]


@pytest.fixture
def with_worker() -> Callable[..., None]:
    """A function that runs a scene with a client and one worker of the options given."""

    def play(scene: Scene, **options: Any) -> None:
        async def run() -> None:
            async with emulated_worker(**options) as worker, _client() as client:
                await scene(client, worker)

        asyncio.run(run())

    return play


@pytest.fixture
def with_pair() -> Callable[..., None]:
    """A function that runs a scene with a client, a prefill and a decode worker."""

    def play(scene: Callable[[Client, EmulatedWorker, EmulatedWorker], Awaitable[None]], **options: Any) -> None:
        async def run() -> None:
            async with (
                emulated_worker(**{"role": "prefill", **options}) as prefill,
                emulated_worker(**{"role": "decode", **options}) as decode,
                _client() as client,
            ):
                await scene(client, prefill, decode)

        asyncio.run(run())

    return play
