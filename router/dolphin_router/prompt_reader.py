"""What routing must know of a prompt: its length, who holds how much of it, how long its answer will be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from .completion_request import CompletionRequest
from .fleet import WorkerState
from .output_inputs import OutputInputsReader
from .output_length import OutputInputs
from .prefix_index import CacheView, PromptPrefix
from .request_record import RequestRecord
from .routing import Route
from .token_count import TokenCounter, TokenEstimate

_read_token_ids = msgspec.json.Decoder(tuple[int, ...]).decode


class ReadPrompt:
    """One request's prompt."""

    __slots__ = ("_clock", "_prefix", "_view", "output_inputs", "read_s", "tokens")

    def __init__(
        self,
        view: CacheView,
        prefix: PromptPrefix,
        output_inputs: OutputInputs,
        clock: Callable[[], float],
    ) -> None:
        self._view = view
        self._prefix = prefix
        self._clock = clock
        self.tokens = prefix.tokens
        self.output_inputs = output_inputs
        self.read_s = 0.0
        """What it took to learn all this."""

    def cached_tokens(self, workers: Sequence[WorkerState]) -> list[int]:
        """Return, for each worker, how many of the prompt's leading tokens it holds."""
        return self._view.cached_tokens(self._prefix, [worker.name for worker in workers], now_s=self._clock())

    def sent_to(self, workers: Sequence[str]) -> None:
        """Take note of the workers that will have the prompt in their caches."""
        self._view.sent(self._prefix, workers, now_s=self._clock())


class PromptReader:
    """Reads prompts, and learns from what engines say of them."""

    def __init__(
        self,
        *,
        counter: TokenCounter,
        view: CacheView,
        outputs: OutputInputsReader,
        clock: Callable[[], float],
        has_events: Callable[[], bool],
    ) -> None:
        """Read with these parts.

        Args:
            counter: tells a prompt's length.
            view: tells which worker holds what.
            outputs: reads what the output-length model may know.
            clock: seconds of the event loop's clock.
            has_events: whether any worker publishes KV events: only then are token ids of use.
        """
        self._counter = counter
        self._view = view
        self._outputs = outputs
        self._clock = clock
        self._has_events = has_events

    def read(self, completion: CompletionRequest, record: RequestRecord) -> ReadPrompt:
        """Return what is known of a request's prompt, and note it in the record."""
        estimate = self._counter.estimate(completion)
        tokens = max(1, estimate.tokens)
        token_ids = _token_ids(completion) if estimate.is_exact and self._has_events() else None
        prefix = self._view.prefix(completion, prompt_tokens=tokens, token_ids=token_ids)
        output_inputs = self._outputs.read(completion, prompt_tokens=tokens)
        record.prompt = completion.prompt
        record.prompt_estimate = estimate
        record.prompt_keys = prefix.keys
        record.prompt_seed = prefix.seed
        record.output_inputs = output_inputs
        return ReadPrompt(self._view, prefix, output_inputs, self._clock)

    def sent(self, prompt: ReadPrompt, route: Route) -> None:
        """Take note of where a prompt goes: its blocks will be cached there."""
        prompt.sent_to([route.decode.name] if route.prefill is None else [route.prefill.name, route.decode.name])

    def finished(self, record: RequestRecord) -> None:
        """Learn the prompt's true length, where the engine told it."""
        estimate: TokenEstimate | None = record.prompt_estimate
        if estimate is not None and record.usage_prompt_tokens is not None:
            self._counter.learn(estimate, record.usage_prompt_tokens)


def _token_ids(completion: CompletionRequest) -> tuple[int, ...] | None:
    prompt = completion.prompt
    if prompt is None:
        return None
    try:
        return _read_token_ids(prompt)
    except msgspec.MsgspecError:
        return None  # A batch of prompts.
