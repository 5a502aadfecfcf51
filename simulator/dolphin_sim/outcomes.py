"""What became of each request."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from dolphin_router.contract import Slo
from dolphin_sim.engine.state import REJECTED, Floats, Ints, Records


@dataclass(frozen=True, eq=False, kw_only=True)
class Outcomes:
    """One array per column, a row for each request. An event that did not happen is at infinity."""

    index: Ints
    """Position in the traffic offered."""
    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    expected_output_tokens: Floats
    path: Ints
    cluster: Ints
    prefill_worker: Ints
    """The candidate; a local request did not use it."""
    decode_worker: Ints
    prefill_cached_tokens: Ints
    decode_cached_tokens: Ints
    reused_tokens: Ints
    shipped_tokens: Ints
    preemptions: Ints
    phase: Ints
    first_token_s: Floats
    finish_s: Floats

    @classmethod
    def from_records(cls, requests: Records) -> Outcomes:
        """Copy the columns out of the engine's records."""
        return cls(**{field.name: np.array(requests[field.name]) for field in fields(cls)})

    @classmethod
    def concatenate(cls, parts: list[Outcomes]) -> Outcomes:
        """All rows of the parts, in their order."""
        return cls(
            **{field.name: np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)}
        )

    def __len__(self) -> int:
        return len(self.index)

    def select(self, mask: NDArray[np.bool_]) -> Outcomes:
        """The rows where ``mask`` is true."""
        return Outcomes(**{field.name: getattr(self, field.name)[mask] for field in fields(self)})

    @property
    def is_finished(self) -> NDArray[np.bool_]:
        """Where the whole answer came within the simulated time."""
        return np.isfinite(self.finish_s)

    @property
    def is_rejected(self) -> NDArray[np.bool_]:
        """Where the request can never fit into a worker's memory."""
        return np.equal(self.phase, REJECTED)

    @property
    def ttft_ms(self) -> Floats:
        """Time to first token; infinite where none came."""
        return (self.first_token_s - self.arrival_s) * 1e3

    @property
    def tpot_ms(self) -> Floats:
        """Mean time of each token after the first; 0 for answers of one token, infinite where unfinished."""
        later_tokens = self.output_tokens - 1
        with np.errstate(invalid="ignore"):
            elapsed_ms = (self.finish_s - self.first_token_s) * 1e3
        tpot_ms = np.where(later_tokens > 0, elapsed_ms / np.maximum(later_tokens, 1), 0.0)
        return np.where(self.is_finished, tpot_ms, np.inf)

    def ttft_limit_ms(self, slo: Slo) -> Floats:
        """The SLO's limit on each request's time to first token."""
        prompt_tokens = self.prompt_tokens.astype(np.float64)
        return slo.ttft_ms + slo.ttft_us_per_prompt_token * prompt_tokens / 1e3

    def is_met(self, slo: Slo) -> NDArray[np.bool_]:
        """Where the request was inside its SLO; failed and unfinished requests were not."""
        ttft_limit_ms = self.ttft_limit_ms(slo)
        if slo.kind == "both":
            return (self.ttft_ms <= ttft_limit_ms) & (self.tpot_ms <= slo.tpot_ms)
        later_tokens = self.output_tokens - 1
        end_to_end_ms = np.where(self.is_finished, (self.finish_s - self.arrival_s) * 1e3, np.inf)
        return end_to_end_ms <= ttft_limit_ms + later_tokens * slo.tpot_ms
