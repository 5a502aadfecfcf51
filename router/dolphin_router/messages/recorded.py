"""Lines of the recorder."""

from __future__ import annotations

import msgspec


class RecordedRow(msgspec.Struct, gc=False):
    """As ``contract.RecordedRequest``, which says what each field means."""

    arrived_unix_s: float
    model: str
    is_chat: bool
    prompt_bytes: int
    prompt_tokens: int
    prompt_tokens_counted: bool
    output_tokens: int | None
    blocks: str
    max_tokens: int | None
    turns: int
    has_tools: bool
    json_response: bool
    system_prompt_bucket: int | None
    prefill_effective_tokens: float | None
    decode_effective_tokens: float | None
    expected_output_tokens: float | None
    cluster: int | None
    decided: str | None
    taken: str | None
    reason: str
    table: str
    streamed: bool
    ttft_ms: float | None
    tpot_ms: float | None
    duration_ms: float | None
    status: int | None
    outcome: str
    retries: int


class RecordedHead(msgspec.Struct):
    """As ``contract.RecordedHeader``."""

    format: str
    block_bytes: int
    secret_id: str
    dropped: int
