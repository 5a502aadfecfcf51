"""How long a forward step takes, by the law of a hardware profile."""

from __future__ import annotations

from dolphin_sim.compiled import compiled
from dolphin_sim.engine.state import Settings


@compiled
def attention_pairs(new_tokens: float, context_tokens: float) -> float:
    """Return ``(c + p)² − c²``, the measure of prefill attention for p new tokens over a context of c."""
    return new_tokens * (new_tokens + 2.0 * context_tokens)


@compiled
def decode_attention_s(settings: Settings, decodes: int, context_tokens: float) -> float:
    """Return the seconds that decode attention adds to a step; ``context_tokens`` is the sum over the batch."""
    if decodes == 0:
        return 0.0
    return settings.decode_attention_s + settings.decode_attention_s_per_token * context_tokens


@compiled
def prefill_s(settings: Settings, new_tokens: int, context_tokens: int, step_tokens: int) -> float:
    """Return the seconds of a prefill alone on an idle worker, in chunks of at most ``step_tokens``."""
    whole = new_tokens // step_tokens
    rest = new_tokens - whole * step_tokens
    seconds = whole * float(settings.step_s[step_tokens])
    if rest > 0:
        seconds += settings.step_s[rest]
    return seconds + settings.attention_s_per_pair * attention_pairs(float(new_tokens), float(context_tokens))


@compiled
def transfer_s(settings: Settings, tokens: int) -> float:
    """Return the seconds to move the KV cache of ``tokens`` tokens over an idle link."""
    return settings.transfer_overhead_s + tokens * settings.kv_bytes_per_token / settings.link_bytes_per_s
