"""The file of measurements: a line that says how they were made, then one line for each."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dolphin_router.atomic_file import replace_file


@dataclass(frozen=True, kw_only=True)
class Run:
    """One measurement of one target in one case."""

    case: str
    target: str
    repetition: int
    result: dict[str, Any]
    """As the load generator prints it, with ``faults``: what makes the measurement worthless."""

    @property
    def name(self) -> str:
        """Which one it is, for messages."""
        return f"{self.case} {self.target} {self.repetition + 1}"

    @property
    def faults(self) -> list[str]:
        """What makes it worthless; empty when it counts."""
        faults: list[str] = self.result["faults"]
        return faults


@dataclass
class RunFile:
    """Measurements that are written as soon as they are there."""

    path: Path
    header: dict[str, Any]
    runs: list[Run] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> RunFile:
        """Return what a file holds. Of measurements of the same thing the last counts; half a last line is left out.

        Raises:
            OSError: there is no such file.
            ValueError: it is not a file of measurements.
        """
        lines = path.read_text("utf-8").split("\n")[:-1]
        if not lines or "settings" not in (header := json.loads(lines[0])):
            raise ValueError(f"{path} is not a file of measurements: give another with --out, or measure anew")
        runs = [Run(**json.loads(line)) for line in lines[1:]]
        return cls(path, header, list({(run.case, run.target, run.repetition): run for run in runs}.values()))

    @classmethod
    def open(cls, path: Path, settings: dict[str, Any], machine: dict[str, Any], *, resume: bool) -> RunFile:
        """Return a new file, or with ``resume`` the one that is there. An older file is kept under another name.

        Raises:
            ValueError: the file that is there was measured in another way.
        """
        header = {"settings": settings, "machine": machine}
        if resume and path.exists():
            found = cls.read(path)
            for part, value in header.items():
                if found.header[part] != value:
                    raise ValueError(
                        f"{path} cannot be resumed: its {part} was {found.header[part]} and is {value}. "
                        "Leave out --resume to measure all anew"
                    )
            lines = (header, *map(asdict, found.runs))
            replace_file(path, "".join(f"{json.dumps(line)}\n" for line in lines).encode())
            return found
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.replace(path.with_name(f"{path.name}.previous"))
        path.write_text(f"{json.dumps(header)}\n", "utf-8")
        return cls(path, header)

    def has(self, case: str, target: str, repetition: int) -> bool:
        """Whether this was measured, and rightly."""
        place = (case, target, repetition)
        return any((run.case, run.target, run.repetition) == place and not run.faults for run in self.runs)

    def add(self, run: Run) -> None:
        """Keep a measurement."""
        self.runs = [*(old for old in self.runs if old.name != run.name), run]
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(asdict(run))}\n")
