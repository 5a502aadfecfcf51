"""What an emulated worker does wrong when told to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

KINDS = {
    "slow": "every step takes VALUE times as long (2)",
    "refuse": "connections are refused",
    "die-after-accept": "connections are reset as soon as a request begins",
    "die-mid-stream": "the connection is reset after VALUE chunks of a stream, or instead of an answer (2)",
    "stall-mid-stream": "nothing more comes after VALUE chunks of a stream, and no whole answer (2)",
    "hang": "requests are read and never answered",
    "status": "requests are answered with status VALUE (500); with 429 and 503 comes Retry-After",
    "drop-kv": "KV caches that were promised are gone when they are asked for",
    "no-parameters": "a prefill's answer has no kv_transfer_params, and its KV cache is not kept",
    "close-idle": "a connection that was used is reset when the next request comes on it",
}
_DEFAULTS = {"slow": 2.0, "die-mid-stream": 2.0, "stall-mid-stream": 2.0, "status": 500.0}


@dataclass
class Fault:
    """One fault, and how many more requests it is for; None for all."""

    kind: str
    value: float
    times: int | None = None

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Return the fault that ``KIND[=VALUE][,times=N]`` names; a bare status such as ``429`` is one too.

        Raises:
            ValueError: it names none.
        """
        name, _, rest = text.partition(",")
        kind, _, value = name.partition("=")
        if kind.isdecimal():
            kind, value = "status", kind
        if kind not in KINDS:
            raise ValueError(f"fault {text!r}: {kind!r} is none of {', '.join(KINDS)} and no status")
        times: int | None = None
        if rest:
            word, _, count = rest.partition("=")
            if word != "times" or not count.isdecimal() or int(count) < 1:
                raise ValueError(f"fault {text!r}: after the comma comes times=N with N of at least 1, not {rest!r}")
            times = int(count)
        try:
            number = float(value) if value else _DEFAULTS.get(kind, 0.0)
        except ValueError as error:
            raise ValueError(f"fault {text!r}: {value!r} is not a number") from error
        if kind == "slow" and number <= 0.0:
            raise ValueError(f"fault {text!r}: the factor must be above 0")
        if kind == "status" and number not in range(400, 600):
            raise ValueError(f"fault {text!r}: {value} is not a status from 400 to 599")
        return cls(kind, number, times)


class Faults:
    """The faults of a worker, which may be set and cleared while it runs."""

    def __init__(self, faults: tuple[str, ...] = ()) -> None:
        self._active: dict[str, Fault] = {}
        self.on_change: Callable[[], None] = lambda: None
        for fault in faults:
            self.set(fault)

    def set(self, text: str) -> None:
        """Switch a fault on; see :meth:`Fault.parse`."""
        fault = Fault.parse(text)
        self._active[fault.kind] = fault
        self.on_change()

    def clear(self, kind: str | None = None) -> None:
        """Switch one kind of fault off, or all."""
        if kind is None:
            self._active.clear()
        else:
            self._active.pop("status" if kind.isdecimal() else kind, None)
        self.on_change()

    def is_set(self, kind: str) -> bool:
        """Tell whether a fault is on, without using it up."""
        return kind in self._active

    def value(self, kind: str, default: float) -> float:
        """Return the value of a fault, or ``default`` when it is off."""
        fault = self._active.get(kind)
        return default if fault is None else fault.value

    def take(self, kind: str) -> Fault | None:
        """Return the fault if it is on, and count one request."""
        fault = self._active.get(kind)
        if fault is not None and fault.times is not None:
            fault.times -= 1
            if fault.times == 0:
                self.clear(kind)
        return fault
