"""The commands that start emulated engines."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from dolphin_router.contract import RouterConfig, Split, read_document
from dolphin_sim.cli import main
from dolphin_sim.cli.cluster import router_command, router_document
from dolphin_sim.emulator import WorkerOptions, emulated_cluster, expected_text

_MAIN = "import sys; from dolphin_sim.cli import main; sys.exit(main())"


@contextmanager
def running(*words: str) -> Iterator[tuple[subprocess.Popen[str], Iterator[str]]]:
    """A command and the lines that it prints."""
    command = [sys.executable, "-c", _MAIN, *words]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield process, iter(process.stdout)
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_cluster_serves_until_it_is_told_to_stop(number: signal.Signals) -> None:
    with running("cluster", "--split", "1P2D", "--port-base", "0", "--time-scale", "100") as (process, lines):
        printed = []
        for line in lines:
            printed.append(line)
            if "dolphin-router" in line:
                break
        roles = re.findall(r"^(\w+) +http://127\.0\.0\.1:\d+$", "".join(printed), re.MULTILINE)
        assert roles == ["prefill", "decode", "decode"]
        urls = re.findall(r"http://127\.0\.0\.1:\d+", printed[-1])
        assert len(urls) == 3
        body = {"model": "emulated", "prompt": "hello", "max_tokens": 3}
        # A connection that stays open does not keep the command from ending.
        with httpx2.Client(timeout=20.0) as client:
            answer = client.post(urls[1] + "/v1/completions", json=body)
            assert answer.json()["choices"][0]["text"] == expected_text("hello", 3)
            process.send_signal(number)
            assert process.wait(20) == 0


def test_one_engine_says_where_it_listens() -> None:
    words = ("engine", "--role", "prefill", "--engine", "sglang", "--port", "0", "--model", "mine", "--fault", "500")
    with running(*words) as (process, lines):
        line = next(lines)
        assert line.startswith("prefill")
        assert "bootstrap port" in line
        url = re.findall(r"http://127\.0\.0\.1:\d+", line)[0]
        models = httpx2.get(url + "/v1/models", timeout=20.0).json()
        assert [model["id"] for model in models["data"]] == ["mine"]
        assert httpx2.post(url + "/v1/completions", json={"prompt": "hello"}, timeout=20.0).status_code == 500
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("engine", "events", "has_command"),
    [
        ("vllm-nixl", None, True),
        ("vllm-nixl", "0.33", False),
        ("vllm-mooncake", None, False),
        ("vllm-lmcache", None, False),
        ("sglang", None, False),
        ("atom", "0.33", False),
        ("atom", None, True),
        ("sidecar", None, True),
    ],
)
def test_the_router_reads_what_is_printed_for_it(engine: str, events: str | None, has_command: bool) -> None:
    options = WorkerOptions(engine=engine, kv_events=events, time_scale=100.0)  # type: ignore[arg-type]

    async def scene() -> None:
        async with emulated_cluster(Split(prefill=1, decode=1), options, aggregated=1) as cluster:
            config = read_document(RouterConfig, json.dumps(router_document(cluster, options)), source="cluster")
            assert config.engine == engine
            assert [worker.url for worker in config.workers.decode] == [cluster.decode[0].url]
            assert (config.workers.prefill[0].bootstrap_port is not None) == (engine in ("vllm-mooncake", "sglang"))
            assert (config.workers.decode[0].kv_events is not None) == (events is not None)
            assert (config.workers.decode[0].lmcache_init_ports is not None) == (engine == "vllm-lmcache")
            assert config.notice_endpoint == cluster.notice_endpoint
            assert (cluster.notice_endpoint is not None) == (engine == "vllm-lmcache")
            assert (router_command(cluster, options) is not None) == has_command

    asyncio.run(scene())


def test_the_router_s_configuration_is_written_where_asked(tmp_path: Path) -> None:
    file = tmp_path / "router.json"
    with running("cluster", "--split", "1P1D", "--port-base", "0", "--router-config", str(file)) as (process, lines):
        command = next(line for line in lines if "dolphin-router" in line)
        assert str(file) in command
        config = read_document(RouterConfig, file.read_text("utf-8"), source=str(file))
        assert len(config.workers.prefill) == len(config.workers.decode) == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["engine", "--fault", "nonsense"], "nonsense"),
        (["engine", "--port", "70000"], "70000"),
        (["engine", "--profile", "none-such"], "none-such"),
        (["engine", "--time-scale", "0"], "not above 0"),
        (["cluster", "--split", "2X"], "2X"),
        (["cluster", "--port-base", "65534"], "--port-base"),
    ],
)
def test_bad_arguments_end_with_exit_code_2(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert complaint in capsys.readouterr().err


def test_a_port_that_is_taken_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    with running("engine", "--port", "0") as (_, lines):
        port = next(lines).strip().rsplit(":", 1)[1]
        assert main(["engine", "--port", port]) == 1
        assert f"127.0.0.1:{port}: Address already in use" in capsys.readouterr().err
