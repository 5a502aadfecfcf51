"""Requests of a workload as columns: what every generator and trace loader gives, and what the simulator takes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

MAX_BLOCK_ID = 2**40 - 1
MAX_SYSTEM_HASH = 2**32 - 1


@dataclass(frozen=True, eq=False, kw_only=True)
class Requests:
    """n requests sorted by arrival, one array per column; n = 0 is legal.

    Block i of a request stands for the tokens [i * block_tokens, (i + 1) * block_tokens) of its prompt, and only
    full blocks are listed: exactly ``prompt_tokens // block_tokens`` of them. Block ids are chained: two blocks have
    the same id if and only if the prompts are equal up to and including that block. So a block that was seen before
    tells that all blocks in front of it were seen, too.

    Construction does not look at the arrays; ``check()`` does. The arrays are not to be written to.
    """

    arrival_s: Floats
    """float64[n], seconds from the start of the window, not negative, not decreasing."""
    prompt_tokens: Ints
    """int64[n], at least 1."""
    output_tokens: Ints
    """int64[n], at least 1."""
    block_offsets: Ints
    """int64[n + 1]: the blocks of request r are ``block_ids[block_offsets[r]:block_offsets[r + 1]]``."""
    block_ids: Ints
    """int64[m], from 0 to MAX_BLOCK_ID."""
    block_tokens: int
    component: Ints
    """int64[n], index into ``component_names``: the sub-workload that the request is of."""
    component_names: tuple[str, ...]
    max_tokens: Ints
    """int64[n], the answer limit that the client sets; 0 = none."""
    turns: Ints
    """int64[n], user and tool turns in the prompt; 0 = not known."""
    tools: Ints
    """int64[n], 1 where the request offers tools."""
    json_format: Ints
    """int64[n], 1 where the request asks for JSON."""
    system_hash: Ints
    """int64[n], keyed hash of the system prompt, from 0 to MAX_SYSTEM_HASH; 0 = no system prompt."""

    @classmethod
    def empty(cls, *, block_tokens: int, component_names: tuple[str, ...]) -> Self:
        """No requests at all."""
        columns: dict[str, Any] = {name: np.zeros(0, np.int64) for name in _COLUMNS}
        columns["arrival_s"] = np.zeros(0, np.float64)
        return cls(
            **columns,
            block_offsets=np.zeros(1, np.int64),
            block_ids=np.zeros(0, np.int64),
            block_tokens=block_tokens,
            component_names=component_names,
        )

    @classmethod
    def without_inputs(
        cls,
        *,
        arrival_s: Floats,
        prompt_tokens: Ints,
        output_tokens: Ints,
        block_offsets: Ints,
        block_ids: Ints,
        block_tokens: int,
        component_name: str,
    ) -> Self:
        """Requests of one component of which no more than lengths and blocks is known."""
        unknown = np.zeros(len(arrival_s), np.int64)
        return cls(
            arrival_s=arrival_s,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            block_offsets=block_offsets,
            block_ids=block_ids,
            block_tokens=block_tokens,
            component=unknown,
            component_names=(component_name,),
            max_tokens=unknown,
            turns=unknown,
            tools=unknown,
            json_format=unknown,
            system_hash=unknown,
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """All requests of the parts, sorted by arrival (equal times: in the order of the parts).

        Block ids are kept: the parts must share one numbering, or be renumbered before (``with_dense_block_ids``).

        Raises:
            ValueError: no parts, or parts with different block sizes.
        """
        if not parts:
            raise ValueError("parts: at least one is needed to concatenate requests")
        sizes = sorted({part.block_tokens for part in parts})
        if len(sizes) > 1:
            raise ValueError(f"block_tokens: parts to concatenate must agree, got {sizes}")
        names = tuple(dict.fromkeys(name for part in parts for name in part.component_names))
        columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
        columns["component"] = np.concatenate(
            [np.array([names.index(name) for name in part.component_names], np.int64)[part.component] for part in parts]
        )
        blocks = np.concatenate([np.diff(part.block_offsets) for part in parts])
        joined = cls(
            **columns,
            block_offsets=offsets_of(blocks),
            block_ids=np.concatenate([part.block_ids for part in parts]),
            block_tokens=sizes[0],
            component_names=names,
        )
        order = np.argsort(joined.arrival_s, kind="stable")
        return joined if np.array_equal(order, np.arange(len(order))) else joined._take(order)

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def block_counts(self) -> Ints:
        """int64[n], full blocks of each request."""
        return np.diff(self.block_offsets)

    def slice(self, start: int, stop: int) -> Self:
        """Requests start (included) to stop (excluded), counted as in Python slices but never from the end."""
        start = min(max(start, 0), len(self))
        stop = min(max(stop, start), len(self))
        columns: dict[str, Any] = {name: getattr(self, name)[start:stop] for name in _COLUMNS}
        first, last = self.block_offsets[start], self.block_offsets[stop]
        return replace(
            self,
            **columns,
            block_offsets=self.block_offsets[start : stop + 1] - first,
            block_ids=self.block_ids[first:last],
        )

    def select(self, mask: Mask) -> Self:
        """The requests where the mask, bool[n], is true.

        Raises:
            ValueError: the mask is not bool[n].
        """
        if mask.dtype != np.bool_ or mask.shape != (len(self),):
            raise ValueError(f"mask: bool[{len(self)}] expected, got {mask.dtype}{list(mask.shape)}")
        return self._take(np.flatnonzero(mask))

    def between(self, start_s: float, stop_s: float) -> Self:
        """The requests that arrive from start_s (included) to stop_s (excluded); times are kept."""
        start, stop = np.searchsorted(self.arrival_s, [start_s, stop_s])
        return self.slice(int(start), int(stop))

    def shifted(self, seconds: float) -> Self:
        """The same requests, that many seconds later."""
        return replace(self, arrival_s=self.arrival_s + seconds)

    def with_arrivals(self, arrival_s: Floats) -> Self:
        """The same requests at other times, float64[n], sorted."""
        return replace(self, arrival_s=arrival_s)

    def with_dense_block_ids(self, *, first_id: int = 0) -> Self:
        """The same requests with the block ids first_id, first_id + 1, ... and no gaps, in the order of the old ids."""
        largest = int(self.block_ids.max(initial=0))
        if largest > 16 * len(self.block_ids):
            dense = np.unique(self.block_ids, return_inverse=True)[1].astype(np.int64)
        else:
            # The same without sorting, where the ids are close enough to each other to mark all of them.
            used = np.zeros(largest + 1, np.int64)
            used[self.block_ids] = 1
            dense = (np.cumsum(used) - 1)[self.block_ids]
        return replace(self, block_ids=dense + first_id)

    def digest(self) -> str:
        """Hexadecimal SHA-256 of all columns with their names, the same on every machine."""
        total = hashlib.sha256()
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                little = value.astype("<f8" if value.dtype.kind == "f" else "<i8")
                total.update(f"{field.name}[{len(value)}]\n".encode())
                total.update(little.tobytes())
            else:
                total.update(f"{field.name}={value!r}\n".encode())
        return total.hexdigest()

    def check(self) -> Self:
        """Return self when every promise of the columns holds.

        Raises:
            ValueError: the first column and row that break one.
        """
        n = len(self.arrival_s)
        shapes = dict.fromkeys(_COLUMNS, n) | {"block_offsets": n + 1, "block_ids": len(self.block_ids)}
        for name, length in shapes.items():
            column = getattr(self, name)
            dtype = np.float64 if name == "arrival_s" else np.int64
            if column.dtype != dtype or column.shape != (length,):
                expected = f"{np.dtype(dtype)}[{length}]"
                raise ValueError(f"{name}: {expected} expected, got {column.dtype}{list(column.shape)}")
        if self.block_tokens < 1:
            raise ValueError(f"block_tokens: {self.block_tokens} is not at least 1")
        self._refuse("arrival_s", ~np.isfinite(self.arrival_s) | (self.arrival_s < 0), "is not a time from 0 on")
        self._refuse("arrival_s", np.diff(self.arrival_s, prepend=0.0) < 0, "is earlier than the row before")
        for name, low, high in (
            ("prompt_tokens", 1, None),
            ("output_tokens", 1, None),
            ("component", 0, len(self.component_names) - 1),
            ("max_tokens", 0, None),
            ("turns", 0, None),
            ("tools", 0, 1),
            ("json_format", 0, 1),
            ("system_hash", 0, MAX_SYSTEM_HASH),
        ):
            column = getattr(self, name)
            wrong = column < low if high is None else (column < low) | (column > high)
            self._refuse(name, wrong, f"is not at least {low}" if high is None else f"is not from {low} to {high}")
        self._check_blocks()
        return self

    def _check_blocks(self) -> None:
        if self.block_offsets[0] != 0 or self.block_offsets[-1] != len(self.block_ids):
            raise ValueError(
                f"block_offsets: they run from {self.block_offsets[0]} to {self.block_offsets[-1]},"
                f" not from 0 to the {len(self.block_ids)} block_ids"
            )
        counts = self.block_counts
        for row in np.flatnonzero(counts != self.prompt_tokens // self.block_tokens)[:1]:
            raise ValueError(
                f"block_offsets: row {row} has {counts[row]} blocks, but {self.prompt_tokens[row]} prompt tokens make"
                f" {self.prompt_tokens[row] // self.block_tokens} full blocks of {self.block_tokens}"
            )
        row_of_block = np.repeat(np.arange(len(self)), counts)
        for at in np.flatnonzero((self.block_ids < 0) | (self.block_ids > MAX_BLOCK_ID))[:1]:
            wrong = f"row {row_of_block[at]}: {self.block_ids[at]}"
            raise ValueError(f"block_ids: {wrong} is not from 0 to {MAX_BLOCK_ID}")
        # Equal ids must follow equal ids back to the first block: compare each with the first block of its id.
        previous = np.concatenate([[-1], self.block_ids[:-1]])[: len(self.block_ids)]
        previous[self.block_offsets[:-1][counts > 0]] = -1
        _, first, inverse = np.unique(self.block_ids, return_index=True, return_inverse=True)
        for at in np.flatnonzero(previous != previous[first][inverse])[:1]:
            raise ValueError(
                f"block_ids: row {row_of_block[at]}: block {self.block_ids[at]} follows another prefix than in row"
                f" {row_of_block[first[inverse[at]]]}; ids must be chained"
            )

    def _refuse(self, name: str, wrong: Mask, reason: str) -> None:
        for row in np.flatnonzero(wrong)[:1]:
            raise ValueError(f"{name}: row {row}: {getattr(self, name)[row]} {reason}")

    def _take(self, rows: NDArray[np.intp]) -> Self:
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in _COLUMNS}
        counts = self.block_counts[rows]
        offsets = offsets_of(counts)
        source = np.repeat(self.block_offsets[rows] - offsets[:-1], counts) + np.arange(offsets[-1])
        return replace(self, **columns, block_offsets=offsets, block_ids=self.block_ids[source])


# The columns with one number for each request.
_COLUMNS = (
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "component",
    "max_tokens",
    "turns",
    "tools",
    "json_format",
    "system_hash",
)


def offsets_of(counts: Ints) -> Ints:
    """int64[n + 1]: where each run of the given lengths starts when they are laid end to end, and the total."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
