"""The body of a prefill leg: the client's, clamped to one token that nobody reads."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
from msgspec import Raw

from dolphin_router.completion_request import CompletionRequest

_ONE: Final = Raw(b"1")
_FALSE: Final = Raw(b"false")


class Clamps(NamedTuple):
    """Members of the client's body that may not reach a prefill worker as they are.

    Besides them ``stream`` becomes false, since the answer must come in one piece, and ``max_tokens`` 1.
    """

    removed: tuple[str, ...]
    one_if_present: tuple[str, ...]
    """Set to 1 where the client sent them."""


VLLM_CLAMPS: Final = Clamps(
    removed=("stream_options", "best_of", "logprobs", "top_logprobs"),
    one_if_present=("max_completion_tokens", "min_tokens", "n"),
)
"""vLLM refuses ``stream_options`` without ``stream``, and ``min_tokens`` above ``max_tokens``; it prefers
``max_completion_tokens`` to ``max_tokens``. The others only make it compute in vain."""

ATOM_CLAMPS: Final = Clamps(removed=("stream_options",), one_if_present=("max_completion_tokens",))
"""What ATOM's own router clamps. The token that the prefill worker samples starts the answer, so whatever bears on
sampling stays as it is."""


def prefill_body(request: CompletionRequest, clamps: Clamps, transfer_parameters: bytes | None) -> bytes:
    """Return the body for a prefill worker. Members that are not clamped keep their order and their bytes.

    Everything unknown stays: it may change the prompt's tokens or the key of its KV cache, and both must be the same on
    both legs.
    """
    members = request.members()
    for name in clamps.removed:
        members.pop(name, None)
    for name in clamps.one_if_present:
        if name in members:
            members[name] = _ONE
    members["stream"] = _FALSE
    members["max_tokens"] = _ONE
    if transfer_parameters is not None:
        members["kv_transfer_params"] = Raw(transfer_parameters)
    return msgspec.json.encode(members)
