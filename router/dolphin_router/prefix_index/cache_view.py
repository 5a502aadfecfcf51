"""One answer to "how much of this prompt does each worker hold", from whatever is known of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from dolphin_router.completion_request import CompletionRequest
from dolphin_router.kv_events.event_index import EventIndex

from .block_keys import block_keys, prompt_seed
from .index import PrefixIndex


class PromptPrefix(NamedTuple):
    """What identifies a prompt's leading parts."""

    keys: tuple[int, ...]
    seed: bytes
    tokens: int
    """Length of the prompt."""
    bytes_per_token: float
    """Of this prompt as the client wrote it."""
    token_ids: tuple[int, ...] | None
    """Of a prompt given as token ids, or tokenized here; otherwise none."""
    model: str | None
    cache_salt: str | None


class CacheView:
    """The prefix caches of all workers, as the router knows them. One thread only; nothing here waits.

    The router's own history serves every worker and every prompt. Events serve prompts whose token ids are known, on
    workers that publish them, and are exact if no message was missed. If some were, the events are true for the blocks
    that they place and silent about others, so the higher of the two answers counts. When events tell that an engine
    has restarted or cleared its cache, its history is forgotten too.
    """

    def __init__(self, history: PrefixIndex, events: EventIndex | None = None) -> None:
        self._history = history
        self._events = events
        if events is not None:
            events.on_emptied = history.empty

    def prefix(
        self, request: CompletionRequest, *, prompt_tokens: int, token_ids: Sequence[int] | None = None
    ) -> PromptPrefix:
        """Return what identifies the leading parts of a request's prompt.

        Args:
            request: the client's request.
            prompt_tokens: length of its prompt, as well as it is known; at least 1.
            token_ids: the prompt's tokens, if they are known. They are of use only with events.
        """
        prompt = request.prompt
        content = memoryview(b"" if prompt is None else prompt)
        seed = prompt_seed(request)
        return PromptPrefix(
            block_keys(seed, content),
            seed,
            prompt_tokens,
            max(len(content), 1) / max(prompt_tokens, 1),
            None if token_ids is None else tuple(token_ids),
            request.fields.model,
            _cache_salt(request),
        )

    def cached_tokens(self, prefix: PromptPrefix, workers: Sequence[str], *, now_s: float) -> list[int]:
        """Return how many leading tokens of the prompt each worker holds, at most its length.

        Args:
            prefix: from :meth:`prefix`.
            workers: their names.
            now_s: the event loop's time, in seconds.
        """
        bytes_per_token, most = prefix.bytes_per_token, prefix.tokens
        cached = [
            min(most, int(matched / bytes_per_token)) if matched else 0
            for matched in self._history.matched_bytes(prefix.keys, workers)
        ]
        events = self._events
        if events is not None and prefix.token_ids is not None:
            exact = events.matched_tokens(
                prefix.token_ids, workers, now_s=now_s, model=prefix.model, cache_salt=prefix.cache_salt
            )
            salted = prefix.cache_salt is not None
            for place, worker in enumerate(workers):
                if exact[place] > cached[place] or events.is_complete(worker, salted=salted):
                    cached[place] = exact[place]
        return cached

    def sent(self, prefix: PromptPrefix, workers: Sequence[str], *, now_s: float) -> None:
        """Note that a request went to these workers, each of which will hold its prompt."""
        for worker in workers:
            self._history.insert(worker, prefix.keys, bytes_per_token=prefix.bytes_per_token)
            if self._events is not None and prefix.token_ids is not None:
                self._events.expect(
                    worker, prefix.token_ids, now_s=now_s, model=prefix.model, cache_salt=prefix.cache_salt
                )

    def forget(self, worker: str) -> None:
        """Forget a worker that has gone. Its events are the subscriptions' concern."""
        self._history.forget(worker)


def _cache_salt(request: CompletionRequest) -> str | None:
    raw = request.fields.cache_salt
    if raw is UNSET:
        return None
    salt = msgspec.json.decode(raw)
    return salt if isinstance(salt, str) and salt else None
