"""What the router's recorder writes: requests without their text, one JSON object a line behind a header.

Files of several routers of one policy may be put one behind the other; each brings its own header.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from .clustering import ActionName
from .model import NO_CONTROL_CHARACTERS, Count, DocumentPart, NonNegative
from .output_model import PROMPT_BUCKETS

RECORDED_FORMAT: Final = "dolphinrouting.dev/recorded/v1"
RECORDED_BLOCK_DIGITS: Final = 16
"""Hexadecimal digits that stand for a block."""

_Text = Annotated[str, Field(max_length=253, pattern=NO_CONTROL_CHARACTERS)]
_Hexadecimal = r"^([0-9a-f]{16})*$"


class RecordedHeader(DocumentPart):
    """The first line."""

    format: Literal["dolphinrouting.dev/recorded/v1"]
    block_bytes: Annotated[int, Field(ge=64, le=1 << 20)]
    """Bytes of a prompt's JSON that one block stands for. How many tokens those are depends on the text."""
    secret_id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    """Equal where blocks and buckets were made with the same secret. The secret cannot be told from it."""
    dropped: Count
    """Older requests that there was no more room for."""


class RecordedRequest(DocumentPart):
    """One request that has ended."""

    arrived_unix_s: NonNegative
    model: _Text
    """As the client named it; control characters and what is beyond 253 characters replaced or cut."""
    is_chat: bool
    prompt_bytes: Count
    """Of the prompt's or the messages' JSON."""
    prompt_tokens: Count
    prompt_tokens_counted: bool
    """Whether the engine counted them; otherwise the router's estimate."""
    output_tokens: Count | None
    """Null where no answer was seen, or its length cannot be told."""
    blocks: Annotated[str, Field(pattern=_Hexadecimal)]
    """For each leading whole block of the prompt 16 digits, which stand for it and everything before it. There may be
    fewer than the prompt has whole blocks; of the rest nothing is known."""
    max_tokens: Count | None
    turns: Count
    has_tools: bool
    json_response: bool
    system_prompt_bucket: Annotated[int, Field(ge=0, lt=PROMPT_BUCKETS)] | None
    prefill_effective_tokens: NonNegative | None
    decode_effective_tokens: NonNegative | None
    expected_output_tokens: NonNegative | None
    cluster: Count | None
    """Null where no table decided."""
    decided: ActionName | None
    """By the policy."""
    taken: ActionName | None
    """Null where no worker was chosen."""
    reason: _Text
    table: _Text
    """The first twelve digits of the table's digest; empty where there was none."""
    streamed: bool
    ttft_ms: NonNegative | None
    """Null where the answer was no stream, since then its first token cannot be seen."""
    tpot_ms: NonNegative | None
    duration_ms: NonNegative | None
    status: Count | None
    """Null where the client left first."""
    outcome: Literal["completed", "rejected", "failed", "client-closed"]
    retries: Count
