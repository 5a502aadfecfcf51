"""The latency that a request is promised."""

from __future__ import annotations

from typing import Literal

from .model import DocumentPart, NonNegative

SloKind = Literal["both", "end-to-end"]


class Slo(DocumentPart):
    """Limits on the time to first token (TTFT) and on the time per output token after it (TPOT).

    The TTFT limit grows with the prompt. Kind ``both`` holds each limit by itself; kind ``end-to-end`` holds their
    sum over the request, so that a quick first token can pay for slow later ones.
    """

    kind: SloKind
    ttft_ms: NonNegative
    ttft_us_per_prompt_token: NonNegative
    tpot_ms: NonNegative

    def ttft_limit_ms(self, prompt_tokens: float) -> float:
        """Return the TTFT limit for a prompt of this length."""
        return self.ttft_ms + self.ttft_us_per_prompt_token * prompt_tokens / 1000.0

    def is_met(self, *, prompt_tokens: float, output_tokens: float, ttft_ms: float, tpot_ms: float) -> bool:
        """Tell whether a measured request is inside; exactly at a limit is inside.

        Args:
            prompt_tokens: length of the prompt.
            output_tokens: length of the answer, at least 1.
            ttft_ms: measured time to first token.
            tpot_ms: measured mean time of each later token; 0 for an answer of one token.
        """
        ttft_limit_ms = self.ttft_limit_ms(prompt_tokens)
        if self.kind == "both":
            return ttft_ms <= ttft_limit_ms and tpot_ms <= self.tpot_ms
        later_tokens = output_tokens - 1
        return ttft_ms + later_tokens * tpot_ms <= ttft_limit_ms + later_tokens * self.tpot_ms
