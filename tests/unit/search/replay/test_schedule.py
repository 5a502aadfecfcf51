"""What is sent, when, and what a server can tell of it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from dolphin_router.completion_request import CompletionRequest
from dolphin_router.output_inputs import OutputInputsReader
from dolphin_router.token_count import TokenCounter
from dolphin_search.replay.schedule import Address, Schedule, as_sent
from dolphin_sim.episode import Window, make_episode
from dolphin_sim.output_length import output_inputs
from dolphin_sim.workloads import workload_by_name

ADDRESS = Address("127.0.0.1", 8080)


def _body(schedule: Schedule, row: int) -> bytes:
    head, _, body = schedule.request_bytes(row, ADDRESS).partition(b"\r\n\r\n")
    assert b"content-length: %d" % len(body) in head
    return body


def test_requests_are_those_of_the_simulators_episode_at_their_times() -> None:
    episode = make_episode(
        workload_by_name("hybrid"), rate_per_s=1.0, window=Window(60.0, 10.0, 5.0), seed=4, part="test"
    )
    schedule = Schedule(episode.requests, time_scale=8.0, model="m")
    for row in range(len(schedule)):
        body = json.loads(_body(schedule, row))
        assert schedule.due_s(row) * 8.0 == pytest.approx(episode.requests.arrival_s[row])
        assert len(body["prompt"]) == episode.requests.prompt_tokens[row]
        assert body["max_tokens"] == episode.requests.output_tokens[row]
        assert body["ignore_eos"] is True
        assert body["model"] == "m"


@pytest.mark.parametrize("name", ["hybrid", "agent"])
def test_a_router_reads_from_a_request_what_the_simulation_of_it_is_told(name: str) -> None:
    requests = workload_by_name(name).episode(rate_per_s=1.0, duration_s=20.0, seed=1, part="test")
    expected = output_inputs(as_sent(requests))
    schedule, reader = Schedule(requests), OutputInputsReader(key=b"")
    for row in range(len(requests)):
        completion = CompletionRequest(_body(schedule, row), is_chat=False)
        counted = TokenCounter().estimate(completion)
        assert counted.is_exact
        inputs = reader.read(completion, prompt_tokens=counted.tokens)
        assert inputs.vector() == pytest.approx(tuple(expected[row]))


def test_nothing_but_what_clients_state_changes_in_requests_as_sent() -> None:
    requests = workload_by_name("chat").episode(rate_per_s=1.0, duration_s=20.0, seed=1, part="test")
    sent = as_sent(requests)
    restored = replace(
        sent,
        **{name: getattr(requests, name) for name in ("max_tokens", "turns", "tools", "json_format", "system_hash")},
    )
    assert restored.digest() == requests.digest()
    assert np.array_equal(sent.max_tokens, requests.output_tokens)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8080", Address("127.0.0.1", 8080)),
        ("http://router", Address("router", 80)),
        ("http://router:81/v1", Address("router", 81)),
        ("http://router:81/team/", Address("router", 81, "/team")),
        ("http://[::1]:81", Address("::1", 81)),
    ],
)
def test_addresses(url: str, address: Address) -> None:
    assert Address.parse(url) == address


@pytest.mark.parametrize("url", ["https://router", "router:80", "http://", "http://router:99999", "http://router?x=1"])
def test_what_is_no_address_is_refused_by_name(url: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        Address.parse(url)
