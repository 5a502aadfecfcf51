"""Answers as vLLM writes them: whole, or chunk by chunk."""

from __future__ import annotations

from typing import Any

import msgspec

from dolphin_sim.emulator.call import Choice, Run
from dolphin_sim.emulator.connectors import Connector
from dolphin_sim.emulator.tokens import detokenize, token_bytes
from dolphin_sim.emulator.tool_calls import forced_tool

_encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"


class AnswerFormat:
    """Writes the answers of one run."""

    def __init__(self, run: Run, connector: Connector) -> None:
        self._connector = connector
        self._run = run
        self._call = run.call
        self._is_chat = run.call.is_chat
        self._model = run.call.body.model or connector.parts.options.model
        self._tool = forced_tool(run.call)
        self._logprobs = run.call.body.logprobs_count
        options = run.call.body.stream_options
        self.includes_usage = connector.always_sends_usage or bool(options and options.include_usage)
        self._is_usage_continuous = bool(options and options.include_usage and options.continuous_usage_stats)
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        head = {"id": run.call.request_id, "object": kind, "created": run.call.created, "model": self._model}
        # Written once for each stream instead of once a chunk.
        self._chunk_head = b"data: " + _encode(head)[:-1] + b',"choices":['

    def roles(self) -> list[bytes]:
        """Return the chunks with which the choices of a chat begin."""
        if not self._is_chat:
            return []
        delta = {"role": "assistant", "content": ""}
        return [
            self._chunk({"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None})
            for choice in self._run.choices
        ]

    def tokens(self, choice: Choice, start: int, stop: int, *, is_last: bool) -> bytes:
        """Return the chunk with the tokens from ``start`` to before ``stop``."""
        text = choice.text(start, stop)
        finish_reason = self._finish_reason(choice) if is_last else None
        stop_reason = choice.length.stop_reason if is_last else None
        logprobs = None if self._logprobs is None else self._logprobs_of(choice, start, stop)
        document: dict[str, Any]
        if self._is_chat:
            delta: dict[str, Any] = {"content": text}
            if self._tool is not None:
                delta = {"tool_calls": self._tool.piece(text, is_first=start == 0, is_last=is_last)}
            document = {"index": choice.index, "delta": delta, "logprobs": logprobs}
            document["finish_reason"] = finish_reason
            if is_last:
                document["stop_reason"] = stop_reason
        else:
            if start == 0 and self._call.body.echo:
                text = detokenize(self._call.prompts[choice.prompt_index]) + text
            document = {"index": choice.index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
            document["stop_reason"] = stop_reason
        if self._call.body.return_token_ids:
            document["token_ids"] = choice.token_ids(start, stop)
        return self._chunk(document)

    def usage(self) -> bytes:
        """Return the chunk that ends a stream with usage."""
        return self._chunk_head + b'],"usage":' + _encode(self._run.usage()) + b"}\n\n"

    def whole(self) -> bytes:
        """Return the whole answer."""
        call = self._call
        kind = "chat.completion" if self._is_chat else "text_completion"
        first = self._run.choices[0]
        return _encode(
            {
                "id": call.request_id,
                "object": kind,
                "created": call.created,
                "model": self._model,
                "choices": [self._whole_choice(choice) for choice in self._run.choices],
                "service_tier": None,
                "system_fingerprint": None,
                "usage": self._run.usage(),
                "kv_transfer_params": first.parameters or self._connector.decode_parameters(first),
            }
        )

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        text = choice.text(0, choice.generated_tokens)
        body = self._call.body
        document: dict[str, Any] = {"index": choice.index}
        logprobs = None if self._logprobs is None else self._logprobs_of(choice, 0, choice.generated_tokens)
        if self._is_chat:
            calls = [] if self._tool is None else self._tool.whole(text)
            content = text if self._tool is None else ""
            document["message"] = {"role": "assistant", "content": content, "refusal": None, "tool_calls": calls}
        else:
            document["text"] = detokenize(self._call.prompts[choice.prompt_index]) + text if body.echo else text
        document |= {
            "logprobs": logprobs,
            "finish_reason": self._finish_reason(choice),
            "stop_reason": choice.length.stop_reason,
        }
        if body.prompt_logprobs is not None:
            prompt = self._call.prompts[choice.prompt_index]
            rest = [{str(token): {"logprob": -1.0, "rank": 1, "decoded_token": ""}} for token in prompt[1:]]
            document["prompt_logprobs"] = [None, *rest]
        if body.return_token_ids:
            document["token_ids"] = choice.token_ids(0, choice.generated_tokens)
            document["prompt_token_ids"] = list(self._call.prompts[choice.prompt_index])
        return document

    def _finish_reason(self, choice: Choice) -> str:
        reason = choice.length.finish_reason
        if self._tool is not None and reason == "stop":
            reason = "tool_calls"
        return self._connector.finish_reason(self._call, reason)

    def _logprobs_of(self, choice: Choice, start: int, stop: int) -> dict[str, Any]:
        texts = [token_bytes(token).decode("utf-8", "replace") for token in choice.token_ids(start, stop)]
        most = self._logprobs or 0
        if self._is_chat:
            return {
                "content": [
                    {
                        "token": text,
                        "logprob": -0.5,
                        "bytes": list(text.encode()),
                        "top_logprobs": [
                            {"token": text, "logprob": -0.5, "bytes": list(text.encode())} for _ in range(min(most, 1))
                        ],
                    }
                    for text in texts
                ]
            }
        offsets: list[int] = []
        at = len(choice.text(0, start))
        for text in texts:
            offsets.append(at)
            at += len(text)
        return {
            "text_offset": offsets,
            "token_logprobs": [-0.5] * len(texts),
            "tokens": texts,
            "top_logprobs": [{text: -0.5} for text in texts] if most else None,
        }

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        if self._is_usage_continuous:
            return self._chunk_head + _encode(choice) + b'],"usage":' + _encode(self._run.usage()) + b"}\n\n"
        return self._chunk_head + _encode(choice) + b"]}\n\n"
