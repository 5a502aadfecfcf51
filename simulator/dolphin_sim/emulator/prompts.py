"""From a request's body to the tokens of its prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence

from dolphin_sim.emulator.answers import chat_prompt
from dolphin_sim.emulator.errors import ApiError
from dolphin_sim.emulator.request_body import ChatBody, CompletionBody, TokenizeBody
from dolphin_sim.emulator.tokens import VOCABULARY, tokenize

# What changes a chat's prompt besides its messages.
_TEMPLATE_MEMBERS = ("chat_template", "chat_template_kwargs", "documents")


def chat_tokens(body: ChatBody | TokenizeBody) -> list[int]:
    """Return the tokens of a chat."""
    tools = json.dumps(body.tools, sort_keys=True) if body.tools else ""
    settings = {name: value for name in _TEMPLATE_MEMBERS if (value := getattr(body, name)) is not None}
    head = f"<|settings|>{json.dumps(settings, sort_keys=True)}\n" if settings else ""
    messages = body.messages or []
    return tokenize(head + chat_prompt(messages, add_generation_prompt=body.add_generation_prompt, tools=tools))


def completion_prompts(body: CompletionBody) -> list[list[int]]:
    """Return the tokens of each prompt of a completion request.

    Raises:
        ApiError: there is none.
    """
    prompt = body.prompt
    if isinstance(prompt, str):
        return [tokenize(prompt)]
    if not prompt:
        raise ApiError(400, "Either prompt or prompt_embeds must be provided and non-empty.", param="prompt")
    # A body's prompts are all of one kind.
    if isinstance(prompt[0], int):
        return [prompt]
    return [tokenize(each) if isinstance(each, str) else each for each in prompt]


def check_prompt(prompt: Sequence[int], most: int | None, longest_tokens: int, *, is_chat: bool) -> None:
    """Refuse a prompt that the model cannot read, or that leaves no room for an answer of ``most`` tokens.

    Raises:
        ApiError: with vLLM's words.
    """
    part = "messages" if is_chat else "prompt"
    if not prompt:
        raise ApiError(400, "The decoder prompt cannot be empty", param=part)
    for token in (min(prompt), max(prompt)):
        if not 0 <= token < VOCABULARY:
            raise ApiError(400, f"Token id {token} is out of vocabulary", param=part)
    limit = f"This model's maximum context length is {longest_tokens} tokens."
    if len(prompt) >= longest_tokens:
        asked = f"However, you requested {len(prompt)} tokens in the {part}, Please reduce the length of the {part}."
        raise ApiError(400, f"{limit} {asked}", param=part)
    if most is not None and len(prompt) + most > longest_tokens:
        message = (
            f"'max_tokens' or 'max_completion_tokens' is too large: {most}. {limit} and your request has "
            f"{len(prompt)} input tokens ({most} > {longest_tokens} - {len(prompt)})."
        )
        raise ApiError(400, message, param="max_tokens")
