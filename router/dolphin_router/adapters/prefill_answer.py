"""What a prefill worker's answer says beside its one token."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType


class _Answer(msgspec.Struct):
    kv_transfer_params: Raw | UnsetType = UNSET
    usage: Raw | UnsetType = UNSET


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Details | None = None


class PrefillMembers(NamedTuple):
    """The members that the router reads."""

    transfer_parameters: bytes | None
    """``kv_transfer_params`` byte for byte; None when absent or null."""
    cached_tokens: int | None
    """``usage.prompt_tokens_details.cached_tokens``; engines report it only when told to, and some only above 0."""


_read_answer = msgspec.json.Decoder(_Answer).decode
_read_usage = msgspec.json.Decoder(_Usage).decode


def read_prefill_members(body: bytes) -> PrefillMembers:
    """Read a prefill worker's answer.

    Raises:
        ValueError: it is not a JSON object, or its ``kv_transfer_params`` is neither an object nor null.
    """
    try:
        answer = _read_answer(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ValueError(f"the prefill worker's answer is not a JSON object: {error}") from error
    parameters = None if isinstance(answer.kv_transfer_params, UnsetType) else bytes(answer.kv_transfer_params)
    if parameters == b"null":
        parameters = None
    if parameters is not None and not parameters.startswith(b"{"):
        raise ValueError(
            f"kv_transfer_params of the prefill worker's answer is {parameters[:40]!r}; it should be an object or null"
        )
    return PrefillMembers(parameters, _cached_tokens(answer.usage))


def _cached_tokens(usage: Raw | UnsetType) -> int | None:
    """Usage is only reported on, so that a form we do not know is no reason to fail a request."""
    if isinstance(usage, UnsetType):
        return None
    try:
        details = _read_usage(usage).prompt_tokens_details
    except msgspec.MsgspecError:
        return None
    return None if details is None else details.cached_tokens
