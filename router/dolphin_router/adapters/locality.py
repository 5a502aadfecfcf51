"""Requests whose prompt must be computed where the answer is made."""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Raw

from dolphin_router.completion_request import CompletionRequest

_BATCH: Final = re.compile(rb"\s*\[\s*[\"\[]")
"""A list of strings or of lists of token ids; one prompt is a string or a list of numbers."""
_read_list = msgspec.json.Decoder(list[Raw]).decode


def is_batch(request: CompletionRequest) -> bool:
    """Return whether the prompt is given as a list of prompts, were it of one only."""
    prompt = request.prompt
    return not request.is_chat and prompt is not None and _BATCH.match(prompt) is not None


def prompt_count(request: CompletionRequest) -> int:
    """Return how many prompts the request holds."""
    prompt = request.prompt
    return len(_read_list(prompt)) if prompt is not None and is_batch(request) else 1


def why_local(request: CompletionRequest) -> str | None:
    """Return why a request cannot be prefilled remotely with any engine that hands over one KV cache a request.

    Log-probabilities of the prompt, and its echo, come from the worker that computed it. The answer of a prefill worker
    names the KV cache of one prompt only.
    """
    fields = request.fields
    if fields.prompt_logprobs is not None:
        return "prompt_logprobs"
    if fields.echo:
        return "echo"
    if is_batch(request) and prompt_count(request) > 1:
        return "batch"
    return None
