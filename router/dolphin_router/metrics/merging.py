"""One answer to a scrape from the answers of several processes of a router."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

NOT_SUMMED: Final = frozenset(
    {
        "dolphin_kv_events_silent_workers",
        "dolphin_shadow_table_info",
        "dolphin_table_info",
        "dolphin_workers_ready",
    }
)
"""Families that all processes tell alike; the largest value stands for all. Every other family is summed."""


def merge(texts: Sequence[bytes]) -> bytes:
    """Return the sum of several texts as :func:`~dolphin_router.metrics.families.render` writes them.

    A sample that only some processes have counts as 0 in the others. Families and samples come in the order in which
    they are first met.

    Raises:
        ValueError: a line is neither a comment nor a sample; the message shows it.
    """
    comments: dict[str, list[str]] = {}
    samples: dict[str, dict[str, float]] = {}
    for text in texts:
        family = ""
        values: dict[str, float] = {}
        # Not splitlines: a label may hold one of the rarer ends of a line.
        for line in text.decode().split("\n"):
            if line.startswith("#"):
                family = line.split(" ", 3)[2]
                values = samples.setdefault(family, {})
                known = comments.setdefault(family, [])
                if line not in known:
                    known.append(line)
            elif line:
                name, _, number = line.rpartition(" ")
                try:
                    value = float(number)
                except ValueError as error:
                    raise ValueError(f"{line[:80]!r} is no sample of a metric") from error
                if name not in values:
                    values[name] = value
                elif family in NOT_SUMMED:
                    values[name] = max(values[name], value)
                else:
                    values[name] += value
    lines = []
    for family, values in samples.items():
        lines += comments[family]
        lines += [f"{name} {_number(value)}" for name, value in values.items()]
    return "".join(line + "\n" for line in lines).encode()


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value).replace("inf", "+Inf")
