"""Paths on which there is nothing to choose: one worker answers."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from router_under_test import running_router
from scripted_worker import Peer, WorkerRequest, scripted_worker

from dolphin_router.contract import Limits


async def echo(request: WorkerRequest, peer: Peer) -> None:
    await peer.answer(request.body or b"{}", headers=[(b"content-type", b"application/json")])


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("POST", "/v1/embeddings"),
        ("POST", "/v1/responses"),
        ("POST", "/tokenize?verbose=1"),
        ("POST", "/detokenize"),
        ("POST", "/rerank"),
        ("GET", "/version"),
    ],
)
def test_they_reach_a_decode_worker_as_they_came(method: str, path: str) -> None:
    body = b'{"model": "m", "input":  "text", "x": 0.30}' if method == "POST" else b""

    async def scenario() -> None:
        async with (
            scripted_worker(echo) as prefill,
            scripted_worker(echo) as decode,
            running_router(prefill=[prefill.url], decode=[decode.url]) as router,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.server.port}") as client,
        ):
            answer = await client.request(method, path, content=body)
            assert answer.status_code == 200
            assert answer.content == (body or b"{}")
            assert [(r.method, r.target, r.body) for r in decode.requests] == [(method.encode(), path.encode(), body)]
            assert not prefill.requests
            assert router.plane.admission.taken == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "path", ["/v1/load_lora_adapter", "/abort_request", "/pd_role_switch", "/sleep", "/metrics", "/"]
)
def test_paths_that_change_or_show_a_worker_are_not_passed_on(path: str) -> None:
    async def scenario() -> None:
        async with (
            scripted_worker(echo) as decode,
            running_router(decode=[decode.url]) as router,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.server.port}") as client,
        ):
            assert (await client.post(path, json={})).status_code == 404
            assert not decode.requests

    asyncio.run(scenario())


def test_a_client_cannot_name_a_worker_there_either() -> None:
    async def scenario() -> None:
        async with (
            scripted_worker(echo) as decode,
            running_router(decode=[decode.url]) as router,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.server.port}") as client,
        ):
            body = {"input": "text", "kv_transfer_params": {"remote_host": "elsewhere"}, "bootstrap_host": "elsewhere"}
            headers = {"x-prefiller-host-port": "elsewhere:1"}
            answer = await client.post("/v1/responses", json=body, headers=headers)
            assert json.loads(answer.content) == {"input": "text"}
            assert b"elsewhere" not in decode.requests[0].raw_head + decode.requests[0].body

    asyncio.run(scenario())


def test_they_take_places_like_all_others() -> None:
    async def scenario() -> None:
        may_answer = asyncio.Event()

        async def slow(request: WorkerRequest, peer: Peer) -> None:
            await may_answer.wait()
            await peer.answer()

        limits = Limits(concurrent_requests=1, waiting_requests=0)
        async with (
            scripted_worker(slow) as decode,
            running_router(decode=[decode.url], limits=limits) as router,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.server.port}") as client,
        ):
            first = asyncio.ensure_future(client.get("/v1/models"))
            while not decode.requests:
                await asyncio.sleep(0.005)
            refused = await client.get("/v1/models")
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            may_answer.set()
            assert (await first).status_code == 200
            assert (await client.get("/v1/models")).status_code == 200
            assert router.plane.admission.taken == 0

    asyncio.run(scenario())
