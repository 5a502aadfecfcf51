"""The router's configuration: everything that may change while it runs, and the engine that it speaks to."""

from __future__ import annotations

from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from .clustering import ActionName
from .model import Count, DocumentPart, Name, Positive, inconsistency

ROUTER_CONFIG_FORMAT: Final = "dolphinrouting.dev/router/v1"

EngineName = Literal["vllm-nixl", "vllm-mooncake", "vllm-lmcache", "sglang", "atom", "sidecar"]

_Port = Annotated[int, Field(ge=1, le=65_535)]
_AtLeastOne = Annotated[int, Field(ge=1, le=1_000_000)]
_Tokens = Annotated[int, Field(ge=1, le=1_000_000_000)]
_Retries = Annotated[int, Field(ge=0, le=10)]


def _worker_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = None, None
    if parts is None or parts.scheme != "http" or not parts.hostname or port is None or parts.path not in ("", "/"):
        raise PydanticCustomError("worker_url", "should be a worker's address such as http://10.0.0.1:8000")
    return text.rstrip("/")


def _notice_endpoint(text: str) -> str:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = None, None
    if parts is None or parts.scheme != "tcp" or not parts.hostname or not port or parts.path:
        raise PydanticCustomError("notice_endpoint", "should be an address to listen on such as tcp://0.0.0.0:7500")
    return text


_Ports = Annotated[tuple[_Port, ...], Field(min_length=1, max_length=1024)]


class WorkerAddress(DocumentPart):
    """Where one worker listens."""

    url: Annotated[str, AfterValidator(_worker_url)]
    """Of its HTTP API, ``http://10.0.0.1:8000`` for instance: a port, no path, no TLS."""
    bootstrap_port: _Port | None = None
    """A prefill worker's, for SGLang and for vLLM with Mooncake; 8998 unless given."""
    kv_events: Name | None = None
    """ZeroMQ address of its KV events, ``tcp://10.0.0.1:5557`` for instance."""
    kv_replay: Name | None = None
    """ZeroMQ address at which missed KV events can be asked for again."""
    lmcache_init_ports: _Ports | None = None
    """A decode worker's, for vLLM with LMCache: its ``pd_peer_init_port``, one for each tensor-parallel rank."""
    lmcache_alloc_ports: _Ports | None = None
    """The same worker's ``pd_peer_alloc_port``, in the same order."""

    @property
    def host(self) -> str:
        """Name or address, IPv6 without brackets."""
        host = urlsplit(self.url).hostname
        assert host is not None
        return host

    @property
    def port(self) -> int:
        """Port of the engine's HTTP API."""
        port = urlsplit(self.url).port
        assert port is not None
        return port


class Workers(DocumentPart):
    """All workers by role."""

    prefill: tuple[WorkerAddress, ...] = ()
    """Workers that compute prompts."""
    decode: tuple[WorkerAddress, ...] = ()
    """Workers that answer."""
    aggregated: tuple[WorkerAddress, ...] = ()
    """Workers that both prefill and decode, for engines whose decode workers cannot prefill."""

    @model_validator(mode="after")
    def _no_worker_twice(self) -> Workers:
        for role in ("prefill", "decode", "aggregated"):
            urls = [worker.url for worker in getattr(self, role)]
            for index, url in enumerate(urls):
                if url in urls[:index]:
                    raise inconsistency(f"is the same as {role}[{urls.index(url)}].url", role, index, "url")
        return self


class Timeouts(DocumentPart):
    """How long the router waits, in seconds. There is no limit on a whole answer: long answers are legitimate."""

    connect_s: Positive = 5.0
    """For a connection to a worker."""
    prefill_s: Positive = 300.0
    """From sending the prefill leg to the end of its answer."""
    # The push of a long prompt takes a second or two even on a slow network, and LMCache's decode worker tries for 5 s
    # to find memory for it.
    notice_s: Positive = 10.0
    """vLLM with LMCache: from the end of the prefill leg's answer to the notice that the KV cache has arrived. Without
    it another decode worker computes the prompt."""
    first_byte_s: Positive = 300.0
    """From sending the decode leg to the first piece of its answer."""
    stream_idle_s: Positive = 120.0
    """Between two pieces of an answer."""
    client_stall_s: Positive = 300.0
    """How long a client may leave its answer unread."""
    queue_s: Positive = 30.0
    """In the router's own queue."""


class Limits(DocumentPart):
    """How much the router takes on."""

    concurrent_requests: _AtLeastOne = 4096
    """Worked on at once."""
    waiting_requests: Count = 4096
    """Waiting for that; further ones are answered 429."""
    body_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 33_554_432
    """Of a request; longer ones are answered 413."""


class RouterConfig(DocumentPart):
    """What one router does."""

    format: Literal["dolphinrouting.dev/router/v1"] = ROUTER_CONFIG_FORMAT
    """Version of this document."""
    engine: EngineName
    """The workers' protocol; see ``docs/router.md``."""
    workers: Workers
    table: Name | None = None
    """Path of the routing table; a relative one starts at the configuration's folder."""
    shadow_table: Name | None = None
    """Path of a table that decides without acting; its disagreements are counted."""
    fallback_action: ActionName = "remote"
    """While there is no table."""
    on_no_prefill_worker: Literal["local", "fail"] = "local"
    """While no prefill worker is ready."""
    on_prefill_error: Literal["local", "fail"] = "fail"
    """When no prefill worker could compute a prompt. Local prefill is then counted, and visible in the answer."""
    prefill_retries: _Retries = 1
    """Other prefill workers that are tried when one fails."""
    decode_retries: _Retries = 1
    """Times that a request starts again when its decode worker fails before the first byte."""
    explain: bool = False
    """Whether clients may ask for the decision in headers. They could learn from it what others have cached."""
    cached_tokens: _Tokens | None = None
    """Prompt tokens that one worker's prefix cache holds, as far as they are known; none for the built-in guess."""
    kv_events_wait_s: Annotated[float, Field(ge=0)] = 2.0
    """How long a prompt counts as cached on the worker that it was sent to, while that worker's KV events do not say so
    yet (llm-d's figure). With 0 only what events say counts."""
    notice_endpoint: Annotated[Name, AfterValidator(_notice_endpoint)] | None = None
    """ZeroMQ address at which the router waits for the notices of LMCache's prefill workers that a KV cache has
    arrived; their ``pd_proxy_host`` and ``pd_proxy_port``. Needed for vLLM with LMCache, and for no other engine."""
    timeouts: Timeouts = Timeouts()
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _has_what_lmcache_needs(self) -> RouterConfig:
        if self.engine != "vllm-lmcache":
            if self.notice_endpoint is not None:
                raise inconsistency(f"is for engine vllm-lmcache, not for {self.engine}", "notice_endpoint")
            return self
        if self.notice_endpoint is None:
            raise inconsistency(
                "is missing: engine vllm-lmcache needs an address such as tcp://0.0.0.0:7500", "notice_endpoint"
            )
        for index, worker in enumerate(self.workers.decode):
            where = ("workers", "decode", index)
            init, alloc = worker.lmcache_init_ports, worker.lmcache_alloc_ports
            if init is None or alloc is None:
                field = "lmcache_init_ports" if init is None else "lmcache_alloc_ports"
                raise inconsistency("is missing: engine vllm-lmcache needs it", *where, field)
            if len(alloc) != len(init):
                problem = f"should hold one port for each of the {len(init)} of lmcache_init_ports, not {len(alloc)}"
                raise inconsistency(problem, *where, "lmcache_alloc_ports")
        return self
