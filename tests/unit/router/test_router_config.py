"""What a router's configuration must say, by engine."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from dolphin_router.contract import DocumentError, EngineName, RouterConfig, read_document
from dolphin_router.sources.config_file import workers_of

NOTICES = "tcp://0.0.0.0:7500"
RANKS: dict[str, Any] = {
    "url": "http://10.0.0.2:8000",
    "lmcache_init_ports": [7300, 7301],
    "lmcache_alloc_ports": [7400, 7401],
}


def lmcache(decode: dict[str, Any], **members: Any) -> RouterConfig:
    workers = {"prefill": [{"url": "http://10.0.0.1:8000"}], "decode": [decode]}
    document = {"engine": "vllm-lmcache", "workers": workers, "notice_endpoint": NOTICES, **members}
    return read_document(RouterConfig, json.dumps(document), source="router.yaml")


def without(member: str) -> dict[str, Any]:
    return {name: value for name, value in RANKS.items() if name != member}


def test_lmcache_s_ports_are_known_of_decode_workers() -> None:
    prefill, decode = workers_of(lmcache(RANKS))
    assert decode.facts == {"lmcache_init_ports": (7300, 7301), "lmcache_alloc_ports": (7400, 7401)}
    assert prefill.facts == {}


@pytest.mark.parametrize(
    ("decode", "members", "complaint"),
    [
        (RANKS, {"notice_endpoint": None}, "notice_endpoint is missing"),
        (RANKS, {"notice_endpoint": "tcp://0.0.0.0"}, "notice_endpoint should be an address"),
        (RANKS, {"notice_endpoint": "tcp://0.0.0.0:0"}, "notice_endpoint should be an address"),
        (RANKS, {"notice_endpoint": "http://0.0.0.0:7500"}, "notice_endpoint should be an address"),
        (RANKS, {"notice_endpoint": "tcp://[:7500"}, "notice_endpoint should be an address"),
        (without("lmcache_init_ports"), {}, r"workers.decode\[0\].lmcache_init_ports is missing"),
        (without("lmcache_alloc_ports"), {}, r"workers.decode\[0\].lmcache_alloc_ports is missing"),
        (RANKS | {"lmcache_alloc_ports": [7400]}, {}, r"workers.decode\[0\].lmcache_alloc_ports .* each of the 2 .* 1"),
        (RANKS | {"lmcache_init_ports": []}, {}, r"workers.decode\[0\].lmcache_init_ports"),
        (RANKS | {"lmcache_init_ports": [0, 1]}, {}, r"workers.decode\[0\].lmcache_init_ports\[0\]"),
    ],
)
def test_lmcache_is_refused_without_what_it_needs(
    decode: dict[str, Any], members: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(DocumentError, match=complaint):
        lmcache(decode, **members)


@pytest.mark.parametrize("engine", [name for name in get_args(EngineName) if name != "vllm-lmcache"])
def test_no_other_engine_sends_notices(engine: str) -> None:
    with pytest.raises(DocumentError, match=f"notice_endpoint is for engine vllm-lmcache, not for {engine}"):
        lmcache(RANKS, engine=engine)
