"""A request for answers, read and found good, and the answers as they come."""

from __future__ import annotations

import asyncio
import secrets
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dolphin_sim.emulator.answers import Answer, natural_tokens
from dolphin_sim.emulator.batch import Generation
from dolphin_sim.emulator.errors import ApiError, KvLoadError
from dolphin_sim.emulator.prompts import chat_tokens, check_prompt, completion_prompts
from dolphin_sim.emulator.request_body import DEFAULT_COMPLETION_TOKENS, ChatBody, CompletionBody


@dataclass(frozen=True, kw_only=True)
class Call:
    """What an engine is asked for."""

    body: ChatBody | CompletionBody
    prompts: Sequence[list[int]]
    headers: Mapping[str, str]
    """Names in lower case."""
    request_id: str
    """As vLLM makes it of ``x-request-id``."""
    created: int
    is_chat: bool
    content: bytes
    """The body as it came."""

    @property
    def transfer_parameters(self) -> dict[str, Any]:
        """The body's ``kv_transfer_params``."""
        return self.body.kv_transfer_params or {}

    @property
    def cache_root(self) -> int:
        """Stands for what decides the prefix cache's content besides tokens."""
        return zlib.crc32((self.body.cache_salt or "").encode())


class Choice:
    """One answer on its way."""

    def __init__(
        self, run: Run, *, index: int, prompt_index: int, digest: bytes, answer: Answer, length: Length
    ) -> None:
        self.run = run
        self.index = index
        self.prompt_index = prompt_index
        self.digest = digest
        """Of the prompt."""
        self.answer = answer
        self.length = length
        self.room = asyncio.Event()
        """Set whenever the generation has changed, for what waits for room."""
        self.generation: Generation | None = None
        self.parameters: dict[str, Any] | None = None
        """For the decode worker."""
        self.first_place = 0
        """Of the answer: above 0 where the prompt holds the beginning of the answer."""
        self.is_observed = False

    @property
    def generated_tokens(self) -> int:
        """So far."""
        return 0 if self.generation is None else self.generation.generated_tokens

    @property
    def is_over(self) -> bool:
        """Whether no more tokens come."""
        return self.generation is not None and self.generation.is_over

    def text(self, start: int, stop: int) -> str:
        """Return the text of the tokens from ``start`` to before ``stop``, less a stop string."""
        text = self.answer.text(start + self.first_place, stop + self.first_place)
        if stop == self.length.tokens and self.length.cut_characters:
            # A stop string may begin in an earlier token, which has been sent then.
            text = text[: max(len(text) - self.length.cut_characters, 0)]
        return text

    def token_ids(self, start: int, stop: int) -> list[int]:
        """Return the numbers of those tokens."""
        return self.answer.tokens(start + self.first_place, stop + self.first_place)


@dataclass(frozen=True)
class Length:
    """How an answer ends."""

    tokens: int
    finish_reason: str
    stop_reason: str | None = None
    cut_characters: int = 0
    """Of the last tokens' text, which do not belong to the answer."""


class Run:
    """The answers to one call."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.choices: list[Choice] = []
        self.changed = asyncio.Event()
        """Set when there are new tokens, an end or a failure."""
        self.failure: KvLoadError | None = None
        self.tasks: list[asyncio.Task[None]] = []
        self.is_remote = False
        """Whether its KV cache comes from another worker."""
        self.has_begun_fetching = False
        self.is_aborted = False
        self.reported_cached_tokens: int | None = None
        """What the engine says of its cache when it is not what it found itself."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes."""
        return self.failure is not None or all(choice.is_over for choice in self.choices)

    def usage(self) -> dict[str, Any]:
        """Return the usage so far."""
        prompt_tokens = sum(len(prompt) for prompt in self.call.prompts)
        completion_tokens = sum(choice.generated_tokens for choice in self.choices)
        return {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "completion_tokens": completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens()},
        }

    def _cached_tokens(self) -> int:
        if self.reported_cached_tokens is not None:
            return self.reported_cached_tokens
        firsts = self.choices[:: self.call.body.choices]
        return sum(each.generation.reused_tokens for each in firsts if each.generation is not None)


def request_id_for(body: ChatBody | CompletionBody, headers: Mapping[str, str]) -> str:
    """Return vLLM's id of a request, made of the client's where there is one."""
    kind = "chatcmpl" if isinstance(body, ChatBody) else "cmpl"
    return f"{kind}-{headers.get('x-request-id') or secrets.token_hex(16)}"


def make_call(
    body: ChatBody | CompletionBody,
    headers: Mapping[str, str],
    *,
    content: bytes,
    request_id: str,
    model: str,
    longest_tokens: int,
) -> Call:
    """Tokenize the prompts of a body.

    Raises:
        ApiError: unknown model, an empty prompt, a token that does not exist, or a prompt that is too long.
    """
    if body.model not in (None, "", model):
        raise ApiError(404, f"The model `{body.model}` does not exist.", param="model")
    prompts = [chat_tokens(body)] if isinstance(body, ChatBody) else completion_prompts(body)
    most = body.answer_tokens
    is_chat = isinstance(body, ChatBody)
    for prompt in prompts:
        check_prompt(prompt, most, longest_tokens, is_chat=is_chat)
    return Call(
        body=body,
        prompts=prompts,
        headers=headers,
        request_id=request_id,
        created=int(time.time()),
        is_chat=is_chat,
        content=content,
    )


def answer_length(call: Call, prompt: Sequence[int], digest: bytes, answer: Answer, longest_tokens: int) -> Length:
    """Return how long an answer is and why it ends."""
    body = call.body
    room = longest_tokens - len(prompt)
    default = room if call.is_chat else DEFAULT_COMPLETION_TOKENS
    most = min(room, body.answer_tokens or default)
    wish = (body.vllm_xargs or {}).get("output_tokens")
    natural = max(body.min_tokens, int(wish) if wish else natural_tokens(digest), 1)
    tokens, reason = (most, "length") if body.ignore_eos or natural > most else (natural, "stop")
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if not stops:
        return Length(tokens, reason)
    text = answer.text(0, tokens)
    start = answer.text(0, body.min_tokens)
    found = [(text.find(stop, len(start)), stop) for stop in stops if stop and stop in text[len(start) :]]
    if not found:
        return Length(tokens, reason)
    at, stop = min(found)
    token_characters = len(text) // tokens
    end = at + len(stop)
    tokens = -(-end // token_characters)
    kept = end if body.include_stop_str_in_output else at
    return Length(tokens, "stop", stop, tokens * token_characters - kept)
