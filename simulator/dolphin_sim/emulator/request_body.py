"""Bodies of requests for answers: what vLLM reads of them, and what it refuses."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dolphin_sim.emulator.errors import ApiError

MOST_LOGPROBS = 20
DEFAULT_COMPLETION_TOKENS = 16
Body = TypeVar("Body", bound=BaseModel)
Token = Annotated[int, Field(strict=True)]


class StreamOptions(BaseModel):
    """What a stream holds besides the answer."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class GenerationBody(BaseModel):
    """What both kinds of request have in common. Members that are not named here are accepted and ignored, as vLLM
    does."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    n: int | None = 1
    best_of: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    include_stop_str_in_output: bool = False
    prompt_logprobs: int | None = None
    echo: bool | None = False
    return_token_ids: bool | None = None
    add_special_tokens: bool = True
    cache_salt: str | None = None
    user: str | None = None
    priority: int = 0
    kv_transfer_params: dict[str, Any] | None = None
    vllm_xargs: dict[str, Any] | None = None
    # SGLang's and ATOM's.
    bootstrap_host: str | list[str] | None = None
    bootstrap_port: int | list[int | None] | None = None
    bootstrap_room: int | list[int] | None = None
    data_parallel_rank: int | None = None
    rid: str | list[str] | None = None

    @property
    def answer_tokens(self) -> int | None:
        """The most tokens of the answer that the client asks for."""
        return self.max_tokens

    @property
    def choices(self) -> int:
        """Answers to each prompt."""
        return 1 if self.n is None else self.n

    def check(self) -> None:
        """Refuse what vLLM refuses whatever the prompt.

        Raises:
            ApiError: with vLLM's words, or nearly.
        """
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
        if self.choices < 1:
            raise ApiError(400, f"n must be at least 1, got {self.n}.", param="n")
        if self.best_of is not None and self.best_of < self.choices:
            raise ApiError(
                400, f"best_of must be greater than or equal to n, got n={self.n} and best_of={self.best_of}."
            )
        most = self.answer_tokens
        if most is not None and most < 1:
            raise ApiError(400, f"max_tokens must be at least 1, got {most}.", param="max_tokens")
        if self.min_tokens < 0:
            raise ApiError(400, f"min_tokens must be greater than or equal to 0, got {self.min_tokens}.")
        if most is not None and self.min_tokens > most:
            message = f"min_tokens must be less than or equal to max_tokens={most}, got {self.min_tokens}."
            raise ApiError(400, message, param="min_tokens")
        self._check_sampling()
        if self.prompt_logprobs is not None and self.stream:
            raise ApiError(400, "`prompt_logprobs` are not available when `stream=True`.", param="prompt_logprobs")
        if self.cache_salt == "":
            raise ApiError(400, "Parameter 'cache_salt' must be a non-empty string if provided.", param="cache_salt")

    def _check_sampling(self) -> None:
        if self.temperature is not None and self.temperature < 0.0:
            raise ApiError(400, f"temperature must be non-negative, got {self.temperature}.", param="temperature")
        if self.temperature == 0.0 and self.choices > 1:
            raise ApiError(400, f"n must be 1 when using greedy sampling, got {self.n}.", param="n")
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise ApiError(400, f"top_p must be in (0, 1], got {self.top_p}.", param="top_p")
        if self.top_k is not None and self.top_k < -1:
            raise ApiError(400, f"top_k must be 0 (disable), or at least 1, got {self.top_k}.", param="top_k")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            if value is not None and not -2.0 <= value <= 2.0:
                raise ApiError(400, f"{name} must be in [-2, 2], got {value}.", param=name)

    @property
    def logprobs_count(self) -> int | None:
        """How many likeliest tokens to tell of each place; None for no logprobs at all."""
        raise NotImplementedError


class CompletionBody(GenerationBody):
    """The body of a request to ``/v1/completions``."""

    prompt: list[Token] | list[list[Token]] | str | list[str] | None = None
    prompt_embeds: Any = None
    logprobs: int | None = None
    suffix: str | None = None

    def check(self) -> None:
        """See ``GenerationBody.check``."""
        if self.prompt is None and self.prompt_embeds is None:
            raise ApiError(400, "Either prompt or prompt_embeds must be provided and non-empty.", param="prompt")
        if self.prompt_embeds is not None:
            raise ApiError(400, "You must set `--enable-prompt-embeds` to input `prompt_embeds`.")
        if self.suffix:
            raise ApiError(400, "suffix is not currently supported")
        if self.logprobs is not None and self.logprobs < 0:
            raise ApiError(400, "`logprobs` must be a positive value.", param="logprobs")
        _check_logprobs(self.logprobs)
        super().check()

    @property
    def logprobs_count(self) -> int | None:
        """See ``GenerationBody.logprobs_count``."""
        return self.logprobs


class ChatBody(GenerationBody):
    """The body of a request to ``/v1/chat/completions``."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None

    def check(self) -> None:
        """See ``GenerationBody.check``."""
        if not self.messages:
            raise ApiError(400, "messages must not be empty.", param="messages")
        for message in self.messages:
            if not isinstance(message.get("role"), str):
                raise ApiError(400, "each message must have a role.", param="messages")
        if self.top_logprobs is not None and self.top_logprobs < 0:
            raise ApiError(400, "`top_logprobs` must be a positive value.", param="top_logprobs")
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "when using `top_logprobs`, `logprobs` must be set to true.", param="top_logprobs")
        _check_logprobs(self.top_logprobs)
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise ApiError(400, "When using `tool_choice`, `tools` must be set.", param="tool_choice")
        if self.add_generation_prompt and self.continue_final_message:
            raise ApiError(400, "Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
        super().check()

    @property
    def answer_tokens(self) -> int | None:
        """``max_completion_tokens`` goes before ``max_tokens``."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def logprobs_count(self) -> int | None:
        """See ``GenerationBody.logprobs_count``."""
        return (self.top_logprobs or 0) if self.logprobs else None


class TokenizeBody(BaseModel):
    """The body of a request to ``/tokenize``."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None

    @classmethod
    def read(cls, body: bytes) -> TokenizeBody:
        """Return a body's members.

        Raises:
            ApiError: no JSON, wrong types, or not exactly one of prompt and messages.
        """
        read = _validated(cls, read_json(body))
        if (read.prompt is None) == (read.messages is None):
            raise ApiError(400, "1 validation error: give either prompt or messages", kind="Bad Request")
        return read


def read_body(body: bytes, kind: Literal["chat", "completion"]) -> ChatBody | CompletionBody:
    """Return a request's members.

    Raises:
        ApiError: no JSON, wrong types, or values that vLLM refuses.
    """
    document = read_json(body)
    read = _validated(ChatBody, document) if kind == "chat" else _validated(CompletionBody, document)
    read.check()
    return read


def read_json(body: bytes) -> dict[str, Any]:
    """Return the object that a body holds.

    Raises:
        ApiError: it holds none.
    """
    try:
        document = msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"1 validation error: JSON decode error: {error}", kind="Bad Request") from error
    if not isinstance(document, dict):
        raise ApiError(400, "1 validation error: Input should be a valid dictionary", kind="Bad Request")
    return document


def _validated(model: type[Body], document: dict[str, Any]) -> Body:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        param = ".".join(str(part) for part in first["loc"][:1]) or None
        raise ApiError(400, f"1 validation error: {param}: {first['msg']}", kind="Bad Request", param=param) from error


def _check_logprobs(count: int | None) -> None:
    if count is not None and count > MOST_LOGPROBS:
        message = f"Requested sample logprobs of {count}, which is greater than max allowed: {MOST_LOGPROBS}"
        raise ApiError(400, message, param="logprobs")
