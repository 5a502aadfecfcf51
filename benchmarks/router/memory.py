"""How much memory a router holds: idle, with many open streams, and in the course of a long load.

    python benchmarks/router/memory.py [--targets ours,vllm-router] [--streams 2000] [--soak-s 600] [--json]

The soak asks for unlike prompts of 2,000 bytes without a pause, half of the clients for streams; growth is looked for
in its second half, when all that is bounded is full. Exits with 1 when a check or a goal failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from figures import OURS
from processes import ProcessTree
from rich.console import Console
from targets import RESULTS, TARGETS, Target
from trial import Bench, TrialError, bench, faults, load_result, loading

from dolphin_router.atomic_file import replace_file

CHUNK_INTERVAL_MS: Final = 500.0
"""Of the open streams, which so last half a minute: long enough to open all and look."""
OPEN_LIMIT_S: Final = 25.0
SETTLE_S: Final = 3.0
SOAK_CONNECTIONS: Final = 16
"""Of each kind."""
SOAK_PROMPT_BYTES: Final = 2000
SAMPLE_S: Final = 1.0

MOST_IDLE_MIB: Final = 60.0
MOST_STREAMS_MIB: Final = 120.0
SHORTEST_JUDGED_S: Final = 300.0
"""A shorter soak ends before all that is bounded is full, so its growth says nothing."""
MOST_GROWTH_MIB: Final = 1.0
"""In the second half of a soak: what an allocator's fragments may come to."""


def idle_and_streams(target: Target, streams: int) -> dict[str, Any]:
    """Return resident memory when idle, with all streams open, and after them.

    Raises:
        TrialError: not all streams could be opened, or a process did not start.
    """
    with bench(target, chunk_interval_ms=CHUNK_INTERVAL_MS) as ready:
        router = _tree(ready)
        time.sleep(SETTLE_S)
        idle_mib, before = router.rss_mib(), ready.counters()
        load_arguments = ["--connections", str(streams), "--stream", "--warm-up-s", "0", "--measured-s", "12"]
        with loading(ready, load_arguments) as load:
            limit_s = time.monotonic() + OPEN_LIMIT_S
            while ready.counters()["decode"] - before["decode"] < streams:
                if time.monotonic() > limit_s or load.poll() is not None:
                    raise TrialError(f"{target.name} did not open {streams} streams: {ready.counters()}")
                time.sleep(0.25)
            time.sleep(SETTLE_S)
            streams_mib = router.rss_mib()
            result = load_result(load)
        time.sleep(SETTLE_S)
        found = faults([result], before, ready.counters())
        if result["answers"] != streams:
            found.append(f"{result['answers']} streams ended instead of {streams}")
        return {
            "idle_mib": idle_mib,
            "streams": streams,
            "streams_mib": streams_mib,
            "kib_per_stream": (streams_mib - idle_mib) * 1024 / streams,
            "after_mib": router.rss_mib(),
            "faults": found,
        }


def soak(target: Target, duration_s: float) -> dict[str, Any]:
    """Return resident memory in the course of a load, second by second, and how it grows in the second half.

    Raises:
        TrialError: the router ended, or a process did not start.
    """
    sizes = ["--connections", str(SOAK_CONNECTIONS), "--prompt-bytes", str(SOAK_PROMPT_BYTES)]
    arguments = [*sizes, "--warm-up-s", "0", "--measured-s", str(duration_s)]
    samples: list[tuple[float, float]] = []
    with bench(target, chunk_interval_ms=0.0) as ready, contextlib.ExitStack() as stack:
        router, before, began_s = _tree(ready), ready.counters(), time.monotonic()
        loads = [stack.enter_context(loading(ready, [*arguments, *kind])) for kind in ([], ["--stream"])]
        while (at_s := time.monotonic() - began_s) < duration_s:
            if not router.is_alive():
                raise TrialError(f"{target.name} ended after {at_s:.0f} s of the soak")
            samples.append((at_s, router.rss_mib()))
            time.sleep(SAMPLE_S)
        results = [load_result(load) for load in loads]
        found = faults(results, before, ready.counters())
    late = [(at_s, mib) for at_s, mib in samples if at_s >= duration_s / 2]
    slope = statistics.linear_regression(*zip(*late, strict=True)).slope if len(late) > 1 else 0.0
    return {
        "duration_s": duration_s,
        "answers": sum(result["answers"] for result in results),
        "first_mib": samples[0][1],
        "half_way_mib": late[0][1],
        "last_mib": samples[-1][1],
        "most_mib": max(mib for _, mib in samples),
        "growth_mib": slope * duration_s / 2,
        "samples_mib": [round(mib, 2) for _, mib in samples],
        "faults": found,
    }


def _tree(ready: Bench) -> ProcessTree:
    assert ready.router_pid is not None
    return ProcessTree(ready.router_pid)


def goals(name: str, result: dict[str, Any]) -> list[tuple[str, float, float]]:
    """Return what our router should reach: what, the figure and the limit. Peers have no goals."""
    if name != OURS:
        return []
    found = []
    if "idle_mib" in result:
        found.append(("idle", result["idle_mib"], MOST_IDLE_MIB))
        found.append((f"{result['streams']} open streams", result["streams_mib"], MOST_STREAMS_MIB))
    if "soak" in result and result["soak"]["duration_s"] >= SHORTEST_JUDGED_S:
        found.append(("growth in the soak's second half", result["soak"]["growth_mib"], MOST_GROWTH_MIB))
    return found


def as_text(name: str, result: dict[str, Any]) -> str:
    """Return a target's figures and goals."""
    lines = [f"{name}:"]
    if "idle_mib" in result:
        lines.append(
            f"  idle {result['idle_mib']:.1f} MiB, {result['streams']} open streams {result['streams_mib']:.1f} MiB "
            f"({result['kib_per_stream']:.1f} KiB each), afterwards {result['after_mib']:.1f} MiB"
        )
    if "soak" in result:
        soaked = result["soak"]
        lines.append(
            f"  soak of {soaked['duration_s']:.0f} s, {soaked['answers']:,} answers: {soaked['first_mib']:.1f} MiB at "
            f"the start, {soaked['half_way_mib']:.1f} half way, {soaked['last_mib']:.1f} at the end, "
            f"{soaked['growth_mib']:+.2f} MiB of growth in the second half"
        )
    for what, figure, limit in goals(name, result):
        lines.append(f"  {what}: {figure:.1f} MiB, at most {limit:g}: {'met' if figure <= limit else 'MISSED'}")
    return "\n".join([*lines, *(f"  worthless: {fault}" for fault in _faults(result))])


def _faults(result: dict[str, Any]) -> list[str]:
    return [*result.get("faults", []), *result.get("soak", {}).get("faults", [])]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and return 1 when a check or a goal failed."""
    routers = {name: target for name, target in TARGETS.items() if target.command is not None}
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--targets", default=OURS, help=f"separated by commas, of {','.join(routers)}; %(default)s")
    parser.add_argument("--streams", type=int, default=2000, help="open at once; 0 for none; %(default)s unless given")
    parser.add_argument("--soak-s", type=float, default=0.0, help="length of the soak; none unless given")
    parser.add_argument("--out", type=Path, default=RESULTS / "memory.json", help="%(default)s unless given")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    names = arguments.targets.split(",")
    if unknown := [name for name in names if name not in routers]:
        parser.error(f"--targets: no router {', '.join(unknown)}: choose from {', '.join(routers)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was started is ended
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    console = Console(stderr=True)
    results: dict[str, dict[str, Any]] = json.loads(arguments.out.read_bytes()) if arguments.out.exists() else {}
    try:
        for name in names:
            with console.status(f"measuring {name}"):
                results[name] = results.get(name, {}) | _measure(routers[name], arguments)
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            replace_file(arguments.out, json.dumps(results).encode())
    except (TrialError, subprocess.CalledProcessError) as error:
        console.print(f"memory: {error}", style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        return 130
    measured = {name: results[name] for name in names}
    print(json.dumps(measured) if arguments.json else "\n".join(as_text(*item) for item in measured.items()))
    missed = any(figure > limit for name in names for _, figure, limit in goals(name, measured[name]))
    return int(missed or any(_faults(result) for result in measured.values()))


def _measure(target: Target, arguments: argparse.Namespace) -> dict[str, Any]:
    target.prepare()
    result: dict[str, Any] = {}
    if arguments.streams:
        result |= idle_and_streams(target, arguments.streams)
    if arguments.soak_s:
        result["soak"] = soak(target, arguments.soak_s)
    return result


if __name__ == "__main__":
    sys.exit(main())
