"""Commands of the router's guide, run as they stand there but for ports and paths."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dolphin_router.contract import TableContent, save_table, seal
from dolphin_router.sources.config_file import load_config

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs" / "router.md").read_text()
VLLM_GUIDE = (ROOT / "docs" / "vllm.md").read_text()
BIN = Path(sys.executable).parent


def blocks(language: str, guide: str = GUIDE) -> list[str]:
    """Return the fenced blocks of a language; blocks of commands have none."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", guide, flags=re.MULTILINE | re.DOTALL)
    return [text for name, text in fenced if name == language]


def free_ports(count: int) -> int:
    """Return the first of ``count`` ports in a row that are free now."""
    for first in range(21_000, 60_000, 97):
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


def prompt_tokens(answer: str) -> int:
    """Return the first of the features that an answer's headers tell."""
    found = re.search(r"^x-dolphin-features: ([0-9]+),", answer, flags=re.MULTILINE)
    assert found is not None
    return int(found[1])


@contextmanager
def running(command: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    log = (folder / f"{time.monotonic_ns()}.log").open("w+")
    process = subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=folder, stdout=log, stderr=log, text=True)
    try:
        yield process
        assert process.poll() is None, Path(log.name).read_text()
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0, Path(log.name).read_text()
        log.close()


def wait_for(url: str, folder: Path) -> str:
    for _ in range(600):
        answer = subprocess.run(["curl", "-sf", url], capture_output=True, text=True, cwd=folder)
        if answer.returncode == 0:
            return answer.stdout
        time.sleep(0.05)
    raise AssertionError(f"{url} does not answer")


@pytest.mark.slow
def test_the_guide_s_commands(tmp_path: Path, learned_table: Path) -> None:
    assert shutil.which("curl"), "the guide's commands need curl"
    engines = free_ports(6)
    router, admin = engines + 4, engines + 5
    ports = {f"{8100 + place}": f"{engines + place}" for place in range(4)} | {"8080": f"{router}", "9090": f"{admin}"}

    def local(text: str) -> str:
        text = re.sub(r"\b(810[0-3]|8080|9090)\b", lambda found: ports[found[0]], text)
        return text.replace(".venv/bin/", f"{BIN}/")

    cluster, serve, curl, long_prompt, log_level = (local(block).strip() for block in blocks("")[:5])
    table = tmp_path / "results" / "demo" / "table-2p2d.json"
    table.parent.mkdir(parents=True)
    shutil.copy(learned_table, table)
    assert "dolphin-sim cluster" in cluster
    assert "dolphin-router serve" in serve
    with running(cluster, tmp_path), running(f"{serve} --admin-port {admin}", tmp_path):
        wait_for(f"http://127.0.0.1:{router}/ready", tmp_path)
        wait_until_ready(f"http://127.0.0.1:{admin}/status", tmp_path)
        answer = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, check=True).stdout
        assert "x-dolphin-action: " in answer
        assert answer.rstrip().endswith("data: [DONE]")
        # Whether it goes remote is the table's affair, and this one was learned in a hurry.
        answer = subprocess.run(["bash", "-c", long_prompt], capture_output=True, text=True, check=True).stdout
        assert prompt_tokens(answer) == pytest.approx(prompt_tokens(blocks("text")[0]), rel=0.02)
        assert answer.rstrip().endswith("data: [DONE]")
        said = subprocess.run(["bash", "-c", log_level], capture_output=True, text=True, check=True).stdout
        assert said == "debug\n"
        python = local(blocks("python")[0])
        said = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, check=True).stdout
        assert said
        # Another table in the file's place.
        digest = json.loads(wait_for(f"http://127.0.0.1:{admin}/status", tmp_path))["table"]["digest"]
        other = json.loads(table.read_text())
        flip(other, table)
        for _ in range(200):
            status = json.loads(wait_for(f"http://127.0.0.1:{admin}/status", tmp_path))
            if status["table"]["digest"] != digest:
                break
            time.sleep(0.05)
        assert status["table"]["digest"] != digest
        assert status["table"]["refused"] is None


def wait_until_ready(url: str, folder: Path) -> None:
    for _ in range(600):
        if all(worker["ready"] for worker in json.loads(wait_for(url, folder))["workers"]):
            return
        time.sleep(0.05)
    raise AssertionError("the workers are not ready")


def flip(document: dict[str, Any], path: Path) -> None:
    """Write a table with the opposite actions to a path."""
    content = {name: value for name, value in document.items() if name != "digest"}
    for cluster in content["decider"]["clusters"]:
        cluster["action"] = "local" if cluster["action"] == "remote" else "remote"
    save_table(path, seal(TableContent.model_validate_json(json.dumps(content))))


@pytest.mark.parametrize("block", [*blocks("yaml"), *blocks("yaml", VLLM_GUIDE)])
def test_the_guide_s_configurations_are_valid(block: str, tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    path.write_text(block)
    assert load_config(path).workers.prefill


@pytest.fixture(scope="module")
def learned_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table as ``make demo`` learns it, with less search."""
    path = tmp_path_factory.mktemp("tables") / "table.json"
    subprocess.run(
        [
            *(BIN / "dolphin-search", "learn", "--split", "2P2D", "--rounds", "20", "--periods-per-round", "1"),
            *("--out", path, "--report", path.with_suffix(".html")),
        ],
        check=True,
        capture_output=True,
    )
    return path
