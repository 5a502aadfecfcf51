"""Members of a completion request."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, UnsetType


class RequestMembers(msgspec.Struct):
    """The members that routing reads. Everything else is skipped here and passes unchanged."""

    model: str | None = None
    prompt: Raw | UnsetType = UNSET
    messages: Raw | UnsetType = UNSET
    stream: bool | None = None
    n: int | None = None
    best_of: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    echo: bool | None = None
    prompt_logprobs: int | None = None
    tools: Raw | UnsetType = UNSET
    response_format: Raw | UnsetType = UNSET
    chat_template: Raw | UnsetType = UNSET
    chat_template_kwargs: Raw | UnsetType = UNSET
    documents: Raw | UnsetType = UNSET
    cache_salt: Raw | UnsetType = UNSET
    bootstrap_host: Raw | UnsetType = UNSET
    bootstrap_port: Raw | UnsetType = UNSET
    bootstrap_room: Raw | UnsetType = UNSET
    data_parallel_rank: Raw | UnsetType = UNSET
    disagg_prefill_dp_rank: Raw | UnsetType = UNSET
    kv_transfer_params: Raw | UnsetType = UNSET
    routed_dp_rank: Raw | UnsetType = UNSET


class Message(msgspec.Struct, gc=False):
    """One message of a chat."""

    role: str = ""
    content: Raw | UnsetType = UNSET


class ResponseFormat(msgspec.Struct):
    """What the answer must look like."""

    type: str = ""


class ContentPart(msgspec.Struct):
    """One part of a message's content; text of other kinds of parts is absent."""

    text: str = ""
