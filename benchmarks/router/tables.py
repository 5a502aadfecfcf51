"""Write the comparison of the router with its peers into the results page, between its markers.

    python benchmarks/router/tables.py [--runs FILE] [--memory FILE] [--page docs/results.md]

Refuses measurements that are worthless.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from figures import HEADER, disturbance, goals, rows
from runs import RunFile
from targets import RESULTS

# Beside this folder, where every benchmark that writes into the page finds it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from results_page import markdown, replaced

REPOSITORY = Path(__file__).resolve().parents[2]


def comparison(measured: RunFile) -> str:
    """Return all cases and targets, how they were measured, and the goals."""
    machine, settings = measured.header["machine"], measured.header["settings"]
    repetitions = len({run.repetition for run in measured.runs})
    method = (
        f"Medians of {repetitions} repetitions of {settings['measured_s']:g} s (min..max), {machine['processor']}, "
        f"{machine['cores']} cores, Linux {machine['kernel']}, Python {machine['python']}, "
        f"{' and '.join(machine['peers'])}; {disturbance(measured.runs)}."
    )
    return "\n".join(
        [markdown(HEADER, rows(measured.runs)), "", method, "", *(f"- {goal}" for goal in goals(measured.runs))]
    )


def memory(results: dict[str, dict[str, Any]]) -> str:
    """Return a row for each router."""
    header = ("router", "idle MiB", "open streams", "MiB with them", "KiB each", "soak", "answers", "growth MiB")
    return markdown(header, [_memory_row(name, result) for name, result in results.items()])


def _memory_row(name: str, result: dict[str, Any]) -> tuple[str, ...]:
    open_streams = ("–",) * 4
    if "idle_mib" in result:
        open_streams = (
            f"{result['idle_mib']:.0f}",
            f"{result['streams']:,}",
            f"{result['streams_mib']:.0f}",
            f"{result['kib_per_stream']:.1f}",
        )
    if "soak" not in result:
        return (name, *open_streams, "–", "–", "–")
    soaked = result["soak"]
    return (
        name,
        *open_streams,
        f"{soaked['duration_s']:.0f} s",
        f"{soaked['answers']:,}",
        f"{soaked['growth_mib']:+.2f}",
    )


def main() -> int:
    """Replace what stands between the markers of each table that was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=RESULTS / "runs.jsonl")
    parser.add_argument("--memory", type=Path, default=RESULTS / "memory.json")
    parser.add_argument("--page", type=Path, default=REPOSITORY / "docs" / "results.md")
    arguments = parser.parse_args()
    try:
        page = arguments.page.read_text("utf-8")
        measured = RunFile.read(arguments.runs)
        if worthless := [run.name for run in measured.runs if run.faults]:
            raise ValueError(
                f"{arguments.runs} holds worthless measurements ({', '.join(worthless)}): measure them again"
            )
        page = replaced(page, "router", comparison(measured))
        if arguments.memory.exists():
            results = json.loads(arguments.memory.read_bytes())
            if any(result.get("faults") or result.get("soak", {}).get("faults") for result in results.values()):
                raise ValueError(f"{arguments.memory} holds worthless measurements: measure them again")
            page = replaced(page, "router-memory", memory(results))
        else:
            print(f"{arguments.memory}: nothing measured, its table is left as it is", file=sys.stderr)
    except (OSError, ValueError) as error:
        print(f"tables: {arguments.page}: {error}", file=sys.stderr)
        return 2
    arguments.page.write_text(page, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
