"""The path with the sooner predicted first token, with a price for the decodes that a local prefill disturbs."""

from __future__ import annotations

from dolphin_sim.compiled import compiled


@compiled
def is_remote_cheaper(
    local_s: float, remote_s: float, own_local_prefill_s: float, running_decodes: int, price: float
) -> bool:
    """Return True when remote costs less.

    ``local_s`` and ``remote_s`` are the predicted seconds to the first token on each path. Each running decode is
    slowed for as long as the local prefill takes; ``price`` says how many seconds of this request's delay one such
    second is worth.
    """
    return remote_s < local_s + price * running_decodes * own_local_prefill_s
