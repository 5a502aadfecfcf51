"""A recorded trace as a workload: windows of it, at any rate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dolphin_sim.workloads.arrivals import ArrivalKind, ArrivalProcess, TooManyRequests, arrival_process
from dolphin_sim.workloads.requests import Floats, Requests
from dolphin_sim.workloads.workload import Part, check_window, random_for

TRAIN_SHARE = 0.6
"""Share of the rows, from the first on, that windows for training come from; windows for tests come from the rest."""

# The golden ratio: multiples of it fall evenly into an interval, wherever one stops.
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, kw_only=True)
class TraceWorkload:
    """Windows of recorded requests whose times are stretched so that the whole trace has the asked mean rate.

    A window keeps the ups and downs of its place in the trace: only the mean over all of the trace is the asked rate.
    The seed chooses the place. The first seeds give windows that do not overlap and together cover the part; once it is
    used up, further seeds give windows between those. With the arrival "poisson" or "bursty" the order of the rows is
    kept, their times are drawn anew, and every window has the asked rate.

    A window holds only what the trace knows, so no prefix of it is known at its start.
    """

    name: str
    requests: Requests
    arrival: ArrivalKind | Literal["trace"] = "trace"

    def __post_init__(self) -> None:
        if len(self.requests) < 2 or not self.requests.arrival_s[-1] > self.requests.arrival_s[0]:
            raise ValueError(f"trace {self.name}: it has no rate; two rows at different times are needed")

    @property
    def block_tokens(self) -> int:
        """Tokens of a block."""
        return self.requests.block_tokens

    @property
    def rate_per_s(self) -> float:
        """Mean rate of the trace as recorded."""
        times_s = self.requests.arrival_s
        return (len(times_s) - 1) / float(times_s[-1] - times_s[0])

    def episode(self, *, rate_per_s: float, duration_s: float, seed: int, part: Part) -> Requests:
        """See ``Workload.episode``."""
        check_window(rate_per_s=rate_per_s, duration_s=duration_s, seed=seed, part=part)
        if self.arrival == "trace":
            window = self._recorded_window(rate_per_s=rate_per_s, duration_s=duration_s, seed=seed, part=part)
        else:
            random = random_for(self.name, purpose=part, seed=seed)
            times_s = arrival_process(self.arrival, random, rate_per_s=rate_per_s).until(duration_s)
            window = self._redrawn_window(times_s, rate_per_s=rate_per_s, duration_s=duration_s, seed=seed, part=part)
        return window.with_dense_block_ids()

    def stream(self, *, rate_per_s: float, seed: int, batch_s: float) -> Iterator[Requests]:
        """See ``Workload.stream``. The seed matters only where times are drawn anew."""
        check_window(rate_per_s=rate_per_s, duration_s=batch_s, seed=seed)
        if self.arrival == "trace":
            return self._recorded_batches(rate_per_s=rate_per_s, batch_s=batch_s)
        random = random_for(self.name, purpose="stream", seed=seed)
        return self._redrawn_batches(arrival_process(self.arrival, random, rate_per_s=rate_per_s), batch_s=batch_s)

    def _recorded_batches(self, *, rate_per_s: float, batch_s: float) -> Iterator[Requests]:
        requests = self._from_start(rate_per_s)
        batches = int(float(requests.arrival_s[-1]) // batch_s) + 1
        for batch in range(batches):
            yield requests.between(batch * batch_s, (batch + 1) * batch_s)

    def _redrawn_batches(self, process: ArrivalProcess, *, batch_s: float) -> Iterator[Requests]:
        row = batch = 0
        while row < len(self.requests):
            batch += 1
            times_s = process.until(batch * batch_s)[: len(self.requests) - row]
            yield self.requests.slice(row, row + len(times_s)).with_arrivals(times_s)
            row += len(times_s)

    def _from_start(self, rate_per_s: float) -> Requests:
        times_s = self.requests.arrival_s
        return self.requests.with_arrivals((times_s - times_s[0]) * (self.rate_per_s / rate_per_s))

    def _part_rows(self, part: Part) -> tuple[int, int]:
        boundary = int(TRAIN_SHARE * len(self.requests))
        return (0, boundary) if part == "train" else (boundary, len(self.requests))

    def _recorded_window(self, *, rate_per_s: float, duration_s: float, seed: int, part: Part) -> Requests:
        start, stop = self._part_rows(part)
        rows = self._from_start(rate_per_s).slice(start, stop)
        first_s, last_s = (float(rows.arrival_s[0]), float(rows.arrival_s[-1])) if len(rows) else (0.0, 0.0)
        room_s = last_s - first_s - duration_s
        if room_s < 0:
            raise self._too_short(rate_per_s=rate_per_s, duration_s=duration_s, part=part, part_s=last_s - first_s)
        start_s = first_s + window_start(seed, room=room_s, length=duration_s)
        window = rows.between(start_s, start_s + duration_s)
        return window.shifted(-start_s)

    def _redrawn_window(
        self, times_s: Floats, *, rate_per_s: float, duration_s: float, seed: int, part: Part
    ) -> Requests:
        start, stop = self._part_rows(part)
        mean_rows = rate_per_s * duration_s
        if mean_rows > stop - start:
            part_s = (stop - start) / rate_per_s
            raise self._too_short(rate_per_s=rate_per_s, duration_s=duration_s, part=part, part_s=part_s)
        if len(times_s) > stop - start:
            raise TooManyRequests(
                f"trace {self.name}: {len(times_s)} arrivals were drawn for a window of {duration_s:g} s, and its"
                f" {part} part has {stop - start} rows; take a shorter window, a lower rate or a longer trace"
            )
        first = start + int(window_start(seed, room=stop - start - mean_rows, length=mean_rows))
        # More arrivals than the mean may be drawn; the last windows then begin earlier, so as not to leave the part.
        first = min(first, stop - len(times_s))
        return self.requests.slice(first, first + len(times_s)).with_arrivals(times_s)

    def _too_short(self, *, rate_per_s: float, duration_s: float, part: Part, part_s: float) -> TooManyRequests:
        return TooManyRequests(
            f"trace {self.name}: its {part} part lasts {part_s:.0f} s at {rate_per_s:g} requests/s, too short for a"
            f" window of {duration_s:g} s; take a shorter window, a lower rate or a longer trace"
        )


def window_start(seed: int, *, room: float, length: float) -> float:
    """Start of the seed's window of that length, from 0 to room.

    Round 0 gives the most windows that fit without overlap, evenly spread, in an order in which neighbours are far
    apart. Each later round gives the windows half-way (and so on) between those.
    """
    windows = 1 + int(room / length)
    if seed < windows:
        return _spread(seed, windows) * room / max(1, windows - 1)
    gaps = max(1, windows - 1)
    later, index = divmod(seed - windows, gaps)
    shift = math.modf((later + 1) * _GOLDEN)[0]
    return (_spread(index, gaps) + shift) * room / gaps


def _spread(index: int, count: int) -> int:
    """A permutation of 0 to count - 1 that puts neighbours far apart: multiples of a step near the golden share."""
    step = max(1, round(count * _GOLDEN))
    while math.gcd(step, count) > 1:
        step += 1
    return index * step % count
