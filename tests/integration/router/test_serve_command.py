"""The command ``dolphin-router serve``."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from router_under_test import until
from scripted_worker import Peer, WorkerRequest, scripted_worker
from serve_process import run_to_end, serving
from tables import table_of

from dolphin_router.contract import save_table


async def answer(request: WorkerRequest, peer: Peer) -> None:
    await peer.answer(b'{"usage": {"prompt_tokens": 5, "completion_tokens": 1}}')


def request(**members: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": "Why is the sky blue?", **members}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "--engine is missing"),
        (["--engine", "vllm"], "invalid choice"),
        (["--engine", "vllm-nixl"], "--decode is missing"),
        (["--engine", "vllm-nixl", "--decode", "10.0.0.1"], "worker's address such as http://10.0.0.1:8000"),
        (["--engine", "vllm-nixl", "--decode", "http://x:1", "http://x:1"], "is the same as decode[0].url"),
        (
            ["--engine", "vllm-nixl", "--decode", "http://x:1", "--table", "/no/table.json"],
            "/no/table.json: cannot be read",
        ),
        (["--config", "/no/router.yaml"], "/no/router.yaml: cannot be read"),
        (["--config", "router.yaml", "--engine", "vllm-nixl"], "stands beside --engine"),
        (["--engine", "vllm-nixl", "--decode", "http://x:1", "--admin-host", "0.0.0.0"], "give --admin-token-file"),
        (["--engine", "vllm-nixl", "--decode", "http://x:1", "--tls-key", "key.pem"], "belong together"),
        (["--engine", "vllm-nixl", "--decode", "http://x:1", "--port", "70000"], "'70000' is not a port"),
    ],
)
def test_bad_input_is_told_in_one_line_with_exit_code_2(arguments: list[str], told: str) -> None:
    code, errors = asyncio.run(run_to_end("serve", *arguments))
    assert code == 2
    assert told in errors
    assert errors.count("\n") == 1


def test_an_address_in_use_is_a_failure_with_exit_code_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        code, errors = asyncio.run(
            run_to_end(
                *("serve", "--engine", "vllm-nixl", "--decode", "http://127.0.0.1:1"),
                *("--host", "127.0.0.1", "--port", port, "--admin-port", "0"),
            )
        )
    assert code == 1
    assert "cannot run" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_the_running_answer(processes: int, number: signal.Signals) -> None:
    async def scenario() -> None:
        may_end = asyncio.Event()

        async def slow(request: WorkerRequest, peer: Peer) -> None:
            await peer.start_stream()
            await peer.event("first")
            await may_end.wait()
            await peer.end_stream()

        async with (
            scripted_worker(slow) as decode,
            serving(
                "--engine", "vllm-nixl", "--decode", decode.url, workers=[decode.url], processes=processes
            ) as router,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.port}") as client,
            client.stream("POST", "/v1/completions", json=request(stream=True)) as response,
        ):
            pieces = response.aiter_bytes()
            received = await anext(pieces)
            router.process.send_signal(number)
            await router.wait_for("stopping")
            may_end.set()
            async for piece in pieces:
                received += piece
            assert received.endswith(b"data: [DONE]\n\n")
            assert await router.end() == 0

    asyncio.run(scenario())


def test_the_second_signal_ends_it_at_once() -> None:
    async def scenario() -> None:
        async def endless(request: WorkerRequest, peer: Peer) -> None:
            await peer.start_stream()
            await peer.event("first")
            await peer.until_closed()

        async with (
            scripted_worker(endless) as decode,
            serving("--engine", "vllm-nixl", "--decode", decode.url, workers=[decode.url]) as router,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.port}") as client,
            client.stream("POST", "/v1/completions", json=request(stream=True)) as response,
        ):
            pieces = response.aiter_bytes()
            await anext(pieces)
            router.process.terminate()
            await router.wait_for("stopping")
            router.process.terminate()
            code = await router.end(limit_s=5.0)
            assert code == 1, "".join(router.log)
            assert "answers cut: 1" in router.log[-1]
            assert not any("Traceback" in line for line in router.log)

    asyncio.run(scenario())


def test_its_configuration_is_read_again_when_it_changes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scripted_worker(answer) as first, scripted_worker(answer) as second:
            path = tmp_path / "router.yaml"

            def write(*decode: str, extra: str = "") -> None:
                lines = "".join(f"    - {{url: '{url}'}}\n" for url in decode)
                path.write_text(f"engine: vllm-nixl\nexplain: true\n{extra}workers:\n  decode:\n{lines}")

            write(first.url)
            async with (
                serving("--config", str(path), workers=[first.url]) as router,
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.port}") as client,
            ):
                assert (await client.post("/v1/completions", json=request())).status_code == 200
                write(second.url)
                await router.wait_for(f"worker ready worker={second.url.removeprefix('http://')}")
                assert (await client.post("/v1/completions", json=request())).status_code == 200
                assert (len(first.requests), len(second.requests)) == (1, 1)

                write(second.url, extra="engin: typo\n")
                await router.wait_for("configuration refused.*engin is not a field")
                write(second.url, extra="timeouts: {prefill_s: 7}\n")
                await router.wait_for("configuration in use", count=2)
                path.write_text("engine: sglang\nworkers: {}\n")
                await router.wait_for("configuration refused.*engine cannot change while the router runs")
                assert (await client.post("/v1/completions", json=request())).status_code == 200
                assert len(second.requests) == 2

    asyncio.run(scenario())


def test_a_table_is_swapped_when_its_file_changes_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "table.json"
        local, remote = table_of("local"), table_of("remote")
        save_table(path, local)

        async def prefill(request: WorkerRequest, peer: Peer) -> None:
            await peer.answer(b'{"kv_transfer_params": {"remote_block_ids": [1]}}')

        async with scripted_worker(prefill) as p, scripted_worker(answer) as d:
            arguments = [
                "--engine",
                "vllm-nixl",
                "--prefill",
                p.url,
                "--decode",
                d.url,
                "--table",
                str(path),
                "--explain",
            ]
            async with (
                serving(*arguments, workers=[p.url, d.url]) as router,
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.port}") as client,
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.admin_port}") as admin,
            ):

                async def decided() -> tuple[str, str]:
                    answer = await client.post("/v1/completions", json=request(), headers={"x-dolphin-explain": "1"})
                    return answer.headers["x-dolphin-action"], answer.headers["x-dolphin-table"]

                assert await decided() == ("local", local.digest[7:19])
                save_table(path, remote)
                await router.wait_for(f"table in use.*{remote.digest}", limit_s=5.0)
                assert await decided() == ("remote", remote.digest[7:19])
                path.write_text("{}")
                await router.wait_for("table refused, the one in use stays", limit_s=5.0)
                assert await decided() == ("remote", remote.digest[7:19])
                path.unlink()
                await router.wait_for("table refused, the one in use stays", count=2, limit_s=5.0)
                status = (await admin.get("/status")).json()
                assert status["table"]["digest"] == remote.digest
                assert "cannot be read" in status["table"]["refused"]
                metrics = (await admin.get("/metrics")).text
                assert 'dolphin_reloads_total{what="table",result="refused"} 2' in metrics
                assert (await admin.get("/table")).json()["digest"] == remote.digest

    asyncio.run(scenario())


def test_several_processes_share_a_port_and_one_admin_port_speaks_for_all() -> None:
    async def scenario() -> None:
        async with scripted_worker(answer) as decode:
            arguments = ["--engine", "vllm-nixl", "--decode", decode.url]
            async with serving(*arguments, workers=[decode.url], processes=3) as router:
                # Every connection may reach another process.
                for _ in range(30):
                    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.port}") as client:
                        assert (await client.post("/v1/completions", json=request())).status_code == 200
                async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.admin_port}") as admin:
                    metrics = (await admin.get("/metrics")).text
                    assert 'dolphin_requests_total{path="text",code="200",outcome="completed"} 30' in metrics
                    lines = (await admin.get("/recorded")).text.splitlines()
                    assert sum("arrived_unix_s" in json.loads(line) for line in lines) == 30
                    assert len((await admin.get("/status")).json()["processes"]) == 3
                    assert (await admin.put("/log-level", content="error")).text == "error\n"
                    assert (await admin.get("/log-level")).text == "error\n"
                    assert (await admin.get("/explain")).status_code == 400

    asyncio.run(scenario())


def test_a_process_that_dies_is_replaced() -> None:
    async def scenario() -> None:
        async with scripted_worker(answer) as decode:
            arguments = ["--engine", "vllm-nixl", "--decode", decode.url]
            async with serving(*arguments, workers=[decode.url], processes=2) as router:
                await asyncio.sleep(2.5)  # A death earlier than that counts as a failed start.
                children = _children(router.process.pid)
                os.kill(children[0], signal.SIGKILL)
                await router.wait_for("listening", count=3)
                router.process.terminate()
                assert await router.end() == 0

    asyncio.run(scenario())


def test_no_process_is_left_when_the_first_one_is_killed() -> None:
    async def scenario() -> None:
        async with scripted_worker(answer) as decode:
            arguments = ["--engine", "vllm-nixl", "--decode", decode.url]
            async with serving(*arguments, workers=[decode.url], processes=2) as router:
                children = _children(router.process.pid)
                assert len(children) == 3
                router.process.kill()
                await router.end()
                await until(lambda: not any(map(_is_running, children)), "the children have ended")

    asyncio.run(scenario())


def _children(parent: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def _is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
