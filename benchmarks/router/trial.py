"""One measurement: a fresh stub engine, a fresh router, one load; and the proof that each answer took both legs."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from cases import Case
from processes import free_ports, running
from stub_engine import COMPLETIONS, MODEL
from targets import Ports, Target

HERE = Path(__file__).parent
ROUTER_CORE: Final = 0
HARNESS_CORE: Final = 1
READY_LIMIT_S: Final = 60.0
POLL_S: Final = 0.05


class TrialError(RuntimeError):
    """A measurement could not be made; the message names the target and says why."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A stub engine and a router that have answered a request."""

    ports: Ports
    stub_pid: int
    router_pid: int | None
    """None where there is no router."""

    def counters(self) -> dict[str, int]:
        """Return what the stub workers were asked for so far."""
        status, body = _request(self.ports.decode, "GET", "/stub/counters")
        if status != 200:
            raise TrialError(f"the stub engine answers {status} when asked for its counters")
        counters: dict[str, int] = json.loads(body)
        return counters

    def aim(self) -> list[str]:
        """Return the load generator's arguments that say whom to ask and whom to watch."""
        if self.router_pid is None:
            aim = ["--direct", str(self.ports.prefill), str(self.ports.decode)]
        else:
            aim = ["--port", str(self.ports.router), "--router-pid", str(self.router_pid)]
        return [*aim, "--stub-pid", str(self.stub_pid), "--core", str(HARNESS_CORE)]


def measure(case: Case, target: Target, *, warm_up_s: float, measured_s: float) -> dict[str, Any]:
    """Return what the load generator measured, and under ``faults`` all that makes it worthless.

    Raises:
        TrialError: the stub engine, the router or the load generator did not start, or broke.
    """
    with bench(target, chunk_interval_ms=case.chunk_interval_ms) as ready:
        before = ready.counters()
        times = ["--warm-up-s", str(warm_up_s), "--measured-s", str(measured_s)]
        with loading(ready, [*case.load_arguments(), *times]) as load:
            result = load_result(load)
        after = ready.counters()
    result["faults"] = faults([result], before, after)
    return result


def faults(results: Sequence[dict[str, Any]], before: dict[str, int], after: dict[str, int]) -> list[str]:
    """Return all that makes loads worthless: wrong answers, no answers, or legs that do not fit the answers."""
    answers = sum(result["answers"] for result in results)
    wrong = [f"{result['errors']} wrong answers: {result['first_errors']}" for result in results if result["errors"]]
    none = ["no answer at all"] if not answers else []
    return [*wrong, *none, *unequal_work(answers, before, after)]


def unequal_work(answers: int, before: dict[str, int], after: dict[str, int]) -> list[str]:
    """Return how the stub workers' counters differ from one prefill and one decode leg for each answer."""
    asked = {name: count - before[name] for name, count in after.items()}
    expected = {**dict.fromkeys(asked, 0), "prefill": answers, "decode": answers}
    return [
        f"{asked[name]} of {name.replace('_', ' ')} at the workers instead of {count} for {answers} answers"
        for name, count in expected.items()
        if asked[name] != count
    ]


@contextlib.contextmanager
def loading(ready: Bench, arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run the load generator; :func:`load_result` tells what it found."""
    command = [sys.executable, str(HERE / "load.py"), *ready.aim(), *arguments]
    with running(command, core=HARNESS_CORE, stdout=subprocess.PIPE) as load:
        yield load


def load_result(load: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Wait for the load generator's end and return what it prints.

    Raises:
        TrialError: it printed nothing.
    """
    output, _ = load.communicate()
    if not output:
        raise TrialError(f"the load generator ended with code {load.returncode} and said nothing on its output")
    result: dict[str, Any] = json.loads(output)
    return result


@contextlib.contextmanager
def bench(target: Target, *, chunk_interval_ms: float) -> Iterator[Bench]:
    """Start a stub engine and a router, each on its core, and wait until a request comes through.

    Raises:
        TrialError: one of them ended, or no request came through in time; with the end of the router's log.
    """
    stub_command = [sys.executable, str(HERE / "stub_engine.py"), "--chunk-interval-ms", str(chunk_interval_ms)]
    router_port, metrics_port = free_ports(2)
    with contextlib.ExitStack() as stack:
        stub = stack.enter_context(running(stub_command, core=HARNESS_CORE, stdout=subprocess.PIPE))
        assert stub.stdout is not None
        line = stub.stdout.readline()
        if not line:
            raise TrialError("the stub engine did not start")
        listening = json.loads(line)
        ports = Ports(
            router=router_port,
            metrics=metrics_port,
            prefill=listening["prefill_port"],
            decode=listening["decode_port"],
        )
        if target.command is None:
            yield Bench(ports=ports, stub_pid=stub.pid, router_pid=None)
            return
        log = stack.enter_context(tempfile.TemporaryFile())
        router = stack.enter_context(
            running(
                target.command(ports),
                core=ROUTER_CORE,
                stdout=log,
                stderr=subprocess.STDOUT,
                environment=target.environment,
            )
        )
        _wait_until_ready(target, router, ports.router, log)
        yield Bench(ports=ports, stub_pid=stub.pid, router_pid=router.pid)


def _wait_until_ready(target: Target, router: subprocess.Popen[bytes], port: int, log: IO[bytes]) -> None:
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "ready?"}], "max_tokens": 1})
    limit_s = time.monotonic() + READY_LIMIT_S
    last = "nothing listens"
    while time.monotonic() < limit_s and router.poll() is None:
        try:
            status, answer = _request(port, "POST", COMPLETIONS.decode(), body)
        except (OSError, http.client.HTTPException) as error:
            last = str(error)
        else:
            if status == 200:
                return
            last = f"status {status}: {answer[:200]!r}"
        time.sleep(POLL_S)
    log.seek(0)
    end = log.read()[-2000:].decode(errors="replace")
    how = f"ended with code {router.returncode}" if router.returncode is not None else f"is not ready: {last}"
    raise TrialError(f"{target.name} {how}; the end of its log:\n{end}")


def _request(port: int, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
    try:
        connection.request(method, path, body, {"content-type": "application/json"} if body else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
