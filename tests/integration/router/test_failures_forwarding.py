"""What workers get of a client's request, and what they never get."""

from __future__ import annotations

import json
from typing import Any

import pytest
from failure_scene import NumberedPrefill, Scene, completion, connected, decode_normally, run, scene
from raw_client import request
from scripted_worker import WorkerRequest

PATHS = [b"/v1/completions", b"/v1/chat/completions"]
PASSED_ON = [
    (b"Authorization", b"Bearer of the client's"),
    (b"traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    (b"tracestate", b"vendor=value"),
    (b"baggage", b"user=1"),
    (b"X-Request-Id", b"the client's own"),
    (b"X-Session-ID", b"7"),
    (b"x-unheard-of", b"a"),
    (b"x-unheard-of", b"b"),
    (b"Content-Type", b"application/json; charset=utf-8"),
    (b"User-Agent", b"test/1"),
]
KEPT_BACK = [
    (b"x-prefiller-host-port", b"10.0.0.9:8000"),
    (b"X-Prefiller-Host-Port", b"10.0.0.9:8001"),
    (b"x-override-bootstrap-host", b"10.0.0.9"),
    (b"x-override-rid", b"1"),
    (b"x-data-parallel-host-port", b"10.0.0.9:1"),
    (b"x-dolphin-action", b"local"),
    (b"X-Dolphin-Anything", b"1"),
    (b"x-gateway-destination-endpoint", b"10.0.0.9:1"),
    (b"x-of-this-hop", b"1"),
    (b"Connection", b"keep-alive, X-Of-This-Hop"),
    (b"Keep-Alive", b"timeout=9"),
    (b"Proxy-Authorization", b"Basic eA=="),
    (b"TE", b"trailers"),
    (b"Accept-Encoding", b"gzip, br"),
    (b"Expect", b"100-continue"),
]
STEERING_MEMBERS: dict[str, Any] = {
    "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "10.0.0.9", "remote_request_id": "stolen"},
    "bootstrap_host": "10.0.0.9",
    "bootstrap_port": 1,
    "bootstrap_room": 1,
    "data_parallel_rank": 3,
    "routed_dp_rank": 3,
    "disagg_prefill_dp_rank": 3,
}


async def legs(s: Scene, path: bytes, action: str, **asked: Any) -> list[WorkerRequest]:
    """Send one request and return all that workers got for it."""
    answer = await s.complete(path=path, **asked)
    assert answer.status == 200
    found = [leg for worker in (*s.prefills, *s.decodes) for leg in worker.requests]
    assert len(found) == (2 if action == "remote" else 1)
    return found


@pytest.mark.parametrize("action", ["local", "remote"])
@pytest.mark.parametrize("path", PATHS)
def test_a_client_s_headers_reach_every_leg(path: bytes, action: str) -> None:
    async def play() -> None:
        async with scene(prefill=[NumberedPrefill()], fallback_action=action) as s:
            for leg in await legs(s, path, action, headers=PASSED_ON):
                assert leg.target == path
                for name, value in PASSED_ON:
                    assert value in leg.values(name.lower())
                assert leg.values(b"x-unheard-of") == [b"a", b"b"]
                assert leg.values(b"x-request-id") == [b"the client's own"]

    run(play())


@pytest.mark.parametrize("action", ["local", "remote"])
def test_headers_of_one_hop_and_headers_that_steer_reach_none(action: str) -> None:
    names = {name.lower() for name, _ in KEPT_BACK} - {b"accept-encoding"}

    async def play() -> None:
        async with scene(prefill=[NumberedPrefill()], fallback_action=action) as s:
            assert (await s.complete(headers=KEPT_BACK)).status == 200
            found = [leg for worker in (*s.prefills, *s.decodes) for leg in worker.requests]
            assert found
            for leg in found:
                assert names.isdisjoint({name for name, _ in leg.headers})
                assert leg.values(b"accept-encoding") == [b"identity"]
                assert len(leg.values(b"host")) == 1
                assert b"router" not in leg.values(b"host")

    run(play())


@pytest.mark.parametrize("path", PATHS)
def test_a_request_without_an_id_gets_one_for_both_legs(path: bytes) -> None:
    async def play() -> None:
        async with scene(prefill=[NumberedPrefill()]) as s:
            ids = [leg.values(b"x-request-id") for leg in await legs(s, path, "remote")]
            assert ids[0] == ids[1]
            assert len(ids[0]) == 1
            assert len(ids[0][0]) == 32
            assert (await s.complete(path=path)).status == 200
            assert s.decodes[0].requests[1].values(b"x-request-id") != ids[0]

    run(play())


@pytest.mark.parametrize("action", ["local", "remote"])
@pytest.mark.parametrize("path", PATHS)
def test_members_by_which_workers_find_each_other_are_the_router_s_alone(path: bytes, action: str) -> None:
    async def play() -> None:
        async with scene(prefill=[NumberedPrefill()], fallback_action=action) as s:
            for leg in await legs(s, path, action, **STEERING_MEMBERS):
                body = leg.json()
                kept = set(STEERING_MEMBERS) & set(body)
                assert kept == ({"kv_transfer_params"} if action == "remote" else set())
                assert b"10.0.0.9" not in leg.body
                assert b"stolen" not in leg.body

    run(play())


@pytest.mark.parametrize("action", ["local", "remote"])
def test_unknown_members_and_numbers_pass_as_they_were_written(action: str) -> None:
    raw = (
        b'{"model":"m", "prompt":"hello", "max_tokens": 50,"temperature":0.3,"top_p":1.0e-1,'
        b' "vendor":{"a":[1.50,null]},"cache_salt":"s","seed":12345678901234567890}'
    )

    async def play() -> None:
        async with scene(prefill=[NumberedPrefill()], fallback_action=action) as s:
            async with connected(s.router) as client:
                assert (await client.ask(request(b"POST", b"/v1/completions?x=%20y", raw))).status == 200
            for leg in [leg for worker in (*s.prefills, *s.decodes) for leg in worker.requests]:
                assert leg.target == b"/v1/completions?x=%20y"
                for part in (b"0.3", b"1.0e-1", b'{"a":[1.50,null]}', b'"s"', b"12345678901234567890"):
                    assert part in leg.body
            if action == "local":
                assert s.decodes[0].requests[0].body == raw

    run(play())


def test_a_worker_s_answer_comes_back_with_its_headers_but_those_of_its_hop() -> None:
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Request-Id: engine\r\nX-Engine: a\r\nX-Engine: b\r\n"
        b"Connection: close\r\nKeep-Alive: timeout=5\r\ncontent-length: 2\r\n\r\n{}"
    )

    async def play() -> None:
        async def script(leg: WorkerRequest, peer: Any) -> None:
            await peer.send(head)
            peer.close()

        async with scene(decode=[script]) as s, connected(s.router) as client:
            for _ in range(2):
                answer = await client.ask(completion())
                assert (answer.status, answer.body) == (200, b"{}")
                assert answer.values(b"x-engine") == [b"a", b"b"]
                assert answer.values(b"x-request-id") == [b"engine"]
                assert answer.values(b"content-type") == [b"application/json"]
                assert answer.values(b"content-length") == [b"2"]
                assert not answer.values(b"connection")
                assert not answer.values(b"keep-alive")

    run(play())


@pytest.mark.parametrize("explains", [False, True])
def test_decisions_are_told_only_where_the_operator_allows_it(explains: bool) -> None:
    async def play() -> None:
        async with scene(prefill=[NumberedPrefill()], decode=[decode_normally], explain=explains) as s:
            answer = await s.complete(headers=[(b"x-dolphin-explain", b"1")])
            told = {name: value for name, value in answer.headers if name.startswith(b"x-dolphin-")}
            if explains:
                assert told[b"x-dolphin-action"] == b"remote"
                assert told[b"x-dolphin-reason"] == b"no_table"
                assert len(told[b"x-dolphin-features"].split(b",")) == 4
            else:
                assert told == {}
            quiet = await s.complete()
            assert not [name for name, _ in quiet.headers if name.startswith(b"x-dolphin-")]
            assert json.loads(quiet.body)

    run(play())


def test_a_sidecar_is_told_its_prefill_worker_by_the_router_alone() -> None:
    async def play() -> None:
        async with scene(prefill=[NumberedPrefill()], engine="sidecar") as s:
            (leg,) = await legs(s, PATHS[0], "local", headers=KEPT_BACK)
            assert leg.values(b"x-prefiller-host-port") == [s.prefills[0].url.removeprefix("http://").encode()]
            await s.assert_at_rest()
            assert s.records[0].action_taken == "remote"

    run(play())
