"""What the output-length model may know of a request, read from the request."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from .completion_request import CompletionRequest
from .messages.request import ContentPart, Message, ResponseFormat
from .output_length import OutputInputs, system_prompt_bucket

MOST_ANSWER_TOKENS: Final = 2**31 - 1
"""A client's larger limit counts as this."""

_SYSTEM_ROLES = frozenset({"system", "developer"})
_TURN_ROLES = frozenset({"user", "tool", "function"})
_NOTHING_OFFERED = frozenset({b"null", b"[]"})
_MOST_BUCKETS_KEPT = 1024


_read_messages = msgspec.json.Decoder(list[Message]).decode
_read_format = msgspec.json.Decoder(ResponseFormat).decode
_read_content = msgspec.json.Decoder(str | list[ContentPart]).decode


class OutputInputsReader:
    """Reads requests. What it cannot make sense of counts as absent: the engine will refuse it in its own words."""

    def __init__(self, *, key: bytes) -> None:
        """Take the policy's secret, with which system prompts are hashed: at most 64 bytes, the same on every router.

        Raises:
            ValueError: the key is too long.
        """
        if len(key) > 64:
            raise ValueError(f"the secret has {len(key)} bytes; give one of at most 64")
        self._key = key
        # A policy's traffic has few system prompts, which come again and again. The hash that stands for one here is
        # Python's: a clash would cost one wrong guess.
        self._buckets: dict[int, int | None] = {}

    def read(self, request: CompletionRequest, *, prompt_tokens: int) -> OutputInputs:
        """Return the inputs of a request with a prompt of this length."""
        fields = request.fields
        limit = fields.max_tokens
        turns, bucket = 1, None
        if request.is_chat:
            if fields.max_completion_tokens is not None:
                limit = fields.max_completion_tokens
            turns, bucket = self._read_messages(request)
        return OutputInputs(
            prompt_tokens,
            min(limit, MOST_ANSWER_TOKENS) if limit is not None and limit > 0 else None,
            turns,
            fields.tools is not UNSET and bytes(fields.tools) not in _NOTHING_OFFERED,
            fields.response_format is not UNSET and _is_json(fields.response_format),
            bucket,
        )

    def _read_messages(self, request: CompletionRequest) -> tuple[int, int | None]:
        """Return the number of turns and the system prompt's bucket."""
        prompt = request.prompt
        if prompt is None:
            return 0, None
        try:
            messages = _read_messages(prompt)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return 0, None
        turns = 0
        bucket = None
        for message in messages:
            role = message.role
            if role in _TURN_ROLES:
                turns += 1
            elif role in _SYSTEM_ROLES and bucket is None and message.content is not UNSET:
                bucket = self._bucket(bytes(message.content))
        return turns, bucket

    def _bucket(self, content: bytes) -> int | None:
        buckets = self._buckets
        known = hash(content)
        if known in buckets:
            return buckets[known]
        if len(buckets) >= _MOST_BUCKETS_KEPT:
            buckets.clear()
        text = _text(content)
        bucket = buckets[known] = system_prompt_bucket(text, key=self._key) if text else None
        return bucket


def _text(content: bytes) -> str:
    """Return the text of a message's content, which is a string or a list of parts."""
    try:
        value = _read_content(content)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ""
    return value if isinstance(value, str) else "".join(part.text for part in value)


def _is_json(response_format: Raw | UnsetType) -> bool:
    if isinstance(response_format, UnsetType):
        return False
    try:
        return _read_format(response_format).type.startswith("json")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
