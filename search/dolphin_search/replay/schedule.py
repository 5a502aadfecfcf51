"""What is sent, and when: settled before the first request."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from urllib.parse import urlsplit

import numpy as np

from dolphin_search.replay.prompts import PromptTokens
from dolphin_sim.workloads.requests import Requests


@dataclass(frozen=True)
class Address:
    """Where an OpenAI-compatible server listens."""

    host: str
    port: int
    path: str = ""
    """What goes before ``/v1``."""

    @classmethod
    def parse(cls, url: str) -> Address:
        """Return the address in a URL such as ``http://127.0.0.1:8080``.

        Raises:
            ValueError: it is none of plain HTTP.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ValueError(f"{url!r} is not an address: {error}") from error
        if parts.scheme != "http" or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{url!r} is not an address such as http://127.0.0.1:8080")
        return cls(parts.hostname, port or 80, parts.path.rstrip("/").removesuffix("/v1"))


@dataclass(frozen=True, eq=False)
class Schedule:
    """Requests with the times at which they are due.

    A pure value: a load generator of several processes would give each of them some of the rows and the same start.
    """

    requests: Requests
    time_scale: float = 1.0
    """Seconds of the workload in a second of the clock."""
    model: str = "emulated"
    salt: int = 0
    """See ``PromptTokens``."""

    @cached_property
    def _prompts(self) -> PromptTokens:
        return PromptTokens(self.requests, salt=self.salt)

    def __len__(self) -> int:
        return len(self.requests)

    def due_s(self, row: int) -> float:
        """Return when a request is due, in seconds of the clock since the start."""
        return float(self.requests.arrival_s[row]) / self.time_scale

    def request_bytes(self, row: int, address: Address) -> bytes:
        """Return a request as it goes over the wire: its prompt as token ids, and an answer of exactly its length."""
        tokens = int(self.requests.output_tokens[row])
        body = b'{"model":%b,"prompt":%b,"max_tokens":%d,"ignore_eos":true,%b}' % (
            json.dumps(self.model).encode(),
            self._prompts.json(row),
            tokens,
            b'"temperature":0,"stream":true,"stream_options":{"include_usage":true}',
        )
        host = f"[{address.host}]" if ":" in address.host else address.host
        return b"POST %b/v1/completions HTTP/1.1\r\n%b\r\n%b" % (
            address.path.encode(),
            b"host: %b:%d\r\ncontent-type: application/json\r\ncontent-length: %d\r\nx-dolphin-explain: 1\r\n"
            % (host.encode(), address.port, len(body)),
            body,
        )


def as_sent(requests: Requests) -> Requests:
    """Return the requests with what a server can tell of them when a :class:`Schedule` sends them.

    Answers of exact length need a limit of that length, and a prompt of token ids has one turn and no system prompt,
    whatever the workload's clients would have stated.
    """
    ones, zeros = np.ones(len(requests), dtype=np.int64), np.zeros(len(requests), dtype=np.int64)
    return replace(
        requests,
        max_tokens=requests.output_tokens,
        turns=ones,
        tools=zeros,
        json_format=zeros,
        system_hash=zeros,
    )
