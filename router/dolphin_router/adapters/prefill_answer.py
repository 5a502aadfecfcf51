"""What a prefill worker's answer says beside its one token."""

from __future__ import annotations

import msgspec
from msgspec import UnsetType

from dolphin_router.messages.prefill import PrefillAnswerMembers, PrefillParameters

from .base import PrefillAnswer

_read_answer = msgspec.json.Decoder(PrefillAnswerMembers).decode
_read_parameters = msgspec.json.Decoder(PrefillParameters).decode


def read_answer(body: bytes) -> PrefillAnswer:
    """Read a prefill worker's answer: its ``kv_transfer_params``, where not null, and
    ``usage.prompt_tokens_details.cached_tokens``, which engines report only when told to, and some only above 0.

    Raises:
        ValueError: it is not a JSON object, or its ``kv_transfer_params`` is neither an object nor null.
    """
    cached_tokens = None
    try:
        try:
            answer: PrefillParameters = (read := _read_answer(body))
            if read.usage is not None and read.usage.prompt_tokens_details is not None:
                cached_tokens = read.usage.prompt_tokens_details.cached_tokens
        except msgspec.ValidationError:
            # Usage is only reported on: a form that we do not know is no reason to fail a request.
            answer = _read_parameters(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ValueError(f"the prefill worker's answer is not a JSON object: {error}") from error
    parameters = answer.kv_transfer_params
    if isinstance(parameters, UnsetType):
        return PrefillAnswer(None, cached_tokens)
    value = bytes(parameters)
    if value == b"null":
        return PrefillAnswer(None, cached_tokens)
    if not value.startswith(b"{"):
        raise ValueError(
            f"kv_transfer_params of the prefill worker's answer is {value[:40]!r}; it should be an object or null"
        )
    return PrefillAnswer(value, cached_tokens)
