"""Members of a prefill worker's answer."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, UnsetType


class PromptTokensDetails(msgspec.Struct):
    """Where the prompt's tokens came from."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """What the engine counted."""

    prompt_tokens_details: PromptTokensDetails | None = None


class PrefillParameters(msgspec.Struct):
    """What the decode worker needs."""

    kv_transfer_params: Raw | UnsetType = UNSET


class PrefillAnswerMembers(PrefillParameters):
    """That, and what is only reported."""

    usage: Usage | None = None


class NixlParameters(msgspec.Struct):
    """Of vLLM with NIXL."""

    remote_block_ids: Raw | UnsetType = UNSET
    remote_prefill_cached_tokens: Raw | UnsetType = UNSET
