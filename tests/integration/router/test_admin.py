"""The admin port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from router_under_test import running_router
from scripted_worker import Peer, WorkerRequest, scripted_worker
from tables import table_of

from dolphin_router.admin.handler import AdminHandler, RouterView
from dolphin_router.contract import RecordedRequest, RoutingTable, read_table
from dolphin_router.http.limits import HttpLimits
from dolphin_router.process.router import Router
from dolphin_router.process.view import View
from dolphin_router.routing import ActiveTable
from dolphin_router.server import Server


@asynccontextmanager
async def admin_port(view: RouterView, *, token: bytes | None = None) -> AsyncIterator[httpx.AsyncClient]:
    server = Server(AdminHandler(view, token=token), loop=asyncio.get_running_loop(), limits=HttpLimits())
    await server.start("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
        yield client
    await server.stop(patience_s=1.0)


class Still:
    """A router that does nothing."""

    def __init__(self, table: RoutingTable | None = None, lines: int = 0) -> None:
        self._table = table
        self._lines = lines

    def metrics(self) -> Iterator[bytes]:
        yield b"# nothing\n"

    def recorded(self) -> Iterator[bytes]:
        for number in range(self._lines):
            yield b"%d\n" % number

    def table(self) -> RoutingTable | None:
        return self._table

    def status(self) -> Mapping[str, Any]:
        return {}


def test_everything_but_health_needs_the_token() -> None:
    async def scenario() -> None:
        async with admin_port(Still(), token=b"a secret token") as admin:
            assert (await admin.get("/health")).status_code == 200
            for path in ("/metrics", "/recorded", "/table", "/explain", "/status", "/log-level", "/nowhere"):
                for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic a secret token"}):
                    answer = await admin.get(path, headers=headers)
                    assert answer.status_code == 401
                    assert answer.headers["www-authenticate"] == "Bearer"
            good = {"authorization": "Bearer a secret token"}
            assert (await admin.get("/metrics", headers=good)).text == "# nothing\n"
            assert (await admin.put("/log-level", content="loud", headers=good)).status_code == 400

    asyncio.run(scenario())


def test_a_long_answer_comes_whole_and_others_are_served_meanwhile() -> None:
    async def scenario() -> None:
        async with admin_port(Still(lines=20_000)) as admin:
            many, few = await asyncio.gather(admin.get("/recorded"), admin.get("/metrics"))
            assert many.text.split() == [str(number) for number in range(20_000)]
            assert few.text == "# nothing\n"
            # A reader that leaves half way harms nobody.
            async with admin.stream("GET", "/recorded") as answer:
                await anext(answer.aiter_bytes())
            assert (await admin.get("/metrics")).status_code == 200

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("query", "status", "told"),
    [
        ("prompt_tokens=8088&output_tokens=400", 200, '"action":'),
        ("prompt_tokens=8088&output_tokens=400&decode_cached=8000&prefill_queue_tokens=9", 200, '"cluster":'),
        ("output_tokens=400", 400, "prompt_tokens is missing"),
        ("prompt_tokens=ten&output_tokens=400", 400, "prompt_tokens is 'ten'"),
        ("prompt_tokens=-1&output_tokens=400", 400, "prompt_tokens is '-1'"),
        ("prompt_tokens=10000000000000&output_tokens=4", 400, "from 0 to 10"),
        ("prompt_tokens=8&output_tokens=4&promt=3", 400, "unknown name 'promt'"),
    ],
)
def test_explain(query: str, status: int, told: str) -> None:
    async def scenario() -> None:
        async with admin_port(Still(table_of("local", "remote"))) as admin:
            answer = await admin.get(f"/explain?{query}")
            assert answer.status_code == status
            assert told in answer.text

    asyncio.run(scenario())


def test_without_a_table_it_says_so() -> None:
    async def scenario() -> None:
        async with admin_port(Still()) as admin:
            for path in ("/table", "/explain?prompt_tokens=1&output_tokens=1"):
                answer = await admin.get(path)
                assert answer.status_code == 400
                assert "no table is in use" in answer.text

    asyncio.run(scenario())


def test_what_a_router_does_is_shown() -> None:
    async def answer(request: WorkerRequest, peer: Peer) -> None:
        await peer.answer(b'{"usage": {"prompt_tokens": 50, "completion_tokens": 7}}')

    async def scenario(router: Router, admin: httpx.AsyncClient) -> None:
        table = table_of("local")
        router.plane.active = ActiveTable.from_table(table)
        secret_text = "a text that must not be recorded " * 200
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.server.port}") as client:
            for _ in range(3):
                body = {"model": "m", "messages": [{"role": "user", "content": secret_text}], "max_tokens": 9}
                assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
            assert (await client.post("/v1/chat/completions", content=b"{")).status_code == 400
        header, *rows = (await admin.get("/recorded")).text.splitlines()
        assert json.loads(header)["format"] == "dolphinrouting.dev/recorded/v1"
        read = [RecordedRequest.model_validate_json(row) for row in rows]
        assert [(row.prompt_tokens, row.output_tokens, row.max_tokens, row.taken) for row in read] == [
            (50, 7, 9, "local")
        ] * 3
        assert len({row.blocks for row in read}) == 1
        assert read[0].blocks
        assert "must not be recorded" not in header + "".join(rows)
        metrics = (await admin.get("/metrics")).text
        assert 'dolphin_decisions_total{cluster="0",action="local",reason="cluster"} 3' in metrics
        assert 'dolphin_refused_requests_total{reason="bad_request"} 1' in metrics
        assert f'dolphin_table_info{{digest="{table.digest}",split="1P1D"}} 1' in metrics
        assert "dolphin_decision_duration_seconds_count 3" in metrics
        shown = read_table((await admin.get("/table")).content, source="the admin port")
        assert shown == table
        status = (await admin.get("/status")).json()
        assert [(worker["role"], worker["ready"], worker["open_requests"]) for worker in status["workers"]] == [
            ("decode", True, 0)
        ]

    async def main() -> None:
        async with (
            scripted_worker(answer) as decode,
            running_router(decode=[decode.url]) as router,
            admin_port(View(router)) as admin,
        ):
            await scenario(router, admin)

    asyncio.run(main())
