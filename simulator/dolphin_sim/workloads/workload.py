"""What the simulator and the search ask of a source of requests."""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Literal, Protocol

import numpy as np

from dolphin_sim.workloads.requests import Requests

Part = Literal["train", "test"]
"""Tables are learned and tuned on "train" and compared on "test"."""

_PURPOSES = ("train", "test", "stream")


class Workload(Protocol):
    """A source of requests at any rate. Equal arguments give equal bytes."""

    @property
    def name(self) -> str: ...

    @property
    def block_tokens(self) -> int:
        """Tokens of a block of all requests of this workload."""
        ...

    def episode(self, *, rate_per_s: float, duration_s: float, seed: int, part: Part) -> Requests:
        """The requests of a window of duration_s seconds that starts at time 0, at that mean rate.

        The window shows traffic that has been going on before: conversations and documents are already open at time 0.
        Other seeds and the other part give independent windows. Block ids are those of the window alone.

        Raises:
            ValueError: a rate or duration that is not positive, or a negative seed.
            TooManyRequests: a trace too short for the window, or more requests than a generator draws at once.
        """
        ...

    def stream(self, *, rate_per_s: float, seed: int, batch_s: float) -> Iterator[Requests]:
        """Consecutive batches of batch_s seconds each, with times that go on; some batches may be empty.

        Generators never end and hold no more than the open conversations; traces end with their last row. A block id
        means the same content in all batches.

        Raises:
            ValueError: a rate or batch length that is not positive, or a negative seed.
        """
        ...


def random_for(workload: str, *, purpose: Part | Literal["stream"], seed: int) -> np.random.Generator:
    """The random state of a window or stream, independent of those for other names, purposes and seeds."""
    key = (_PURPOSES.index(purpose), zlib.crc32(workload.encode()))
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))


def check_window(*, rate_per_s: float, duration_s: float, seed: int, part: str = "train") -> None:
    """Refuse arguments of ``episode`` or ``stream`` that no workload can serve.

    Raises:
        ValueError: the argument, its value and what is expected.
    """
    for name, value in (("rate_per_s", rate_per_s), ("duration_s or batch_s", duration_s)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name}: {value} is not a positive number")
    if seed < 0:
        raise ValueError(f"seed: {seed} is negative; seeds count from 0")
    if part not in ("train", "test"):
        raise ValueError(f"part: {part!r} is not 'train' or 'test'")


class BatchWorkload(ABC):
    """A generator whose traffic comes in batches of equal length, from one random state."""

    name: str

    def episode(self, *, rate_per_s: float, duration_s: float, seed: int, part: Part) -> Requests:
        """See ``Workload.episode``."""
        check_window(rate_per_s=rate_per_s, duration_s=duration_s, seed=seed, part=part)
        batches = self._batches(random_for(self.name, purpose=part, seed=seed), rate_per_s, duration_s)
        return next(batches).with_dense_block_ids()

    def stream(self, *, rate_per_s: float, seed: int, batch_s: float) -> Iterator[Requests]:
        """See ``Workload.stream``."""
        check_window(rate_per_s=rate_per_s, duration_s=batch_s, seed=seed)
        return self._batches(random_for(self.name, purpose="stream", seed=seed), rate_per_s, batch_s)

    @abstractmethod
    def _batches(self, random: np.random.Generator, rate_per_s: float, batch_s: float) -> Iterator[Requests]:
        """Return endless batches of ``batch_s`` seconds each, with times that go on."""
