"""How long the router waits and how often it tries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ExchangeSettings:
    """What an operator of the router may choose about one request's way."""

    prefill_timeout_s: float = 300.0
    """From sending the prefill leg to the end of its answer."""
    notice_timeout_s: float = 10.0
    """From the prefill worker's answer to the last notice that the KV cache has arrived, where the engine sends any.
    The push of a long prompt takes a second or two even on a slow network, and LMCache's decode worker tries for 5 s to
    find memory for it."""
    first_byte_timeout_s: float = 300.0
    """From sending the decode leg to the first piece of its answer."""
    stream_idle_timeout_s: float = 120.0
    """Between two pieces of an answer. There is no limit on the whole: long answers are legitimate."""
    client_stall_timeout_s: float = 300.0
    """How long a client may leave its answer unread before it counts as gone."""
    queue_timeout_s: float = 30.0
    """In the router's own queue: 429."""
    prefill_retries: int = 1
    """Other prefill workers that are tried when one fails."""
    decode_retries: int = 1
    """Times a request starts again when its decode worker fails before the first byte."""
    on_prefill_error: Literal["fail", "local"] = "fail"
    """When no prefill worker could compute the prompt. Local prefill is then counted, and visible in the answer."""
    explain: bool = False
    """Whether clients may ask for the decision in headers. They could learn from it what others have cached."""
