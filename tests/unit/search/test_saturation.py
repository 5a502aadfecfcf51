"""The rate at which a promise begins to break, where it can be worked out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dolphin_router.contract import Slo, Split
from dolphin_search.goodput import TARGET, goodputs_per_s
from dolphin_search.saturation import saturated_rate
from dolphin_search.traffic import EpisodeSource
from dolphin_sim.engine.step_time import decode_attention_s, prefill_s
from dolphin_sim.episode import Window
from dolphin_sim.hardware import load_profile
from dolphin_sim.hardware.law import engine_settings
from dolphin_sim.policy import Policy, always_local, always_remote
from dolphin_sim.simulation import Cluster
from dolphin_sim.workloads import Part, Requests, TraceWorkload

H20 = load_profile("h20x4-72b")
CLUSTER = Cluster(H20, Split(prefill=1, decode=1))
SETTINGS = engine_settings(H20, CLUSTER.split, block_tokens=64)
TOKENS = 8_192
DURATION_S = 2_000.0
PATIENCE_S = 60.0

REMOTE_S = prefill_s(SETTINGS, TOKENS, 0, H20.prefill_step_tokens)
LOCAL_S = prefill_s(SETTINGS, TOKENS, 0, H20.decode_step_tokens)
AFTER_REMOTE_S = (
    H20.transfer_overhead_ms / 1e3
    + TOKENS * H20.kv_bytes_per_token / (H20.link_gb_per_s * 1e9)
    + float(SETTINGS.step_s[1])
    + decode_attention_s(SETTINGS, 1, float(TOKENS))
)


class Clockwork:
    """Prompts of one length that arrive evenly."""

    name = "clockwork"
    block_tokens = 64

    def __init__(self, prompts: Callable[..., Requests]) -> None:
        self._prompts = prompts

    def episode(self, *, rate_per_s: float, duration_s: float, seed: int, part: Part) -> Requests:
        arrival_s = np.arange(0.0, duration_s, 1.0 / rate_per_s)
        return self._prompts([TOKENS] * len(arrival_s), arrival_s.tolist())

    def stream(self, **_: object) -> object:
        raise NotImplementedError


def source(prompts: Callable[..., Requests], *, rate_per_s: float) -> EpisodeSource:
    window = Window(period_s=DURATION_S, settle_s=0.0, tail_s=0.0)
    return EpisodeSource(Clockwork(prompts), rate_per_s, window, 0)  # type: ignore[arg-type]


def slo(service_s: float) -> Slo:
    """A request may wait for PATIENCE_S beside its own service."""
    return Slo(kind="both", ttft_ms=1e3 * (service_s + PATIENCE_S), ttft_us_per_prompt_token=0.0, tpot_ms=1.0)


def rate_at_which_attainment_is(target: float, service_s: float) -> float:
    # The n-th request waits n (service − 1/rate): of rate × duration requests the share `target` within PATIENCE_S.
    return (1 + PATIENCE_S / (target * DURATION_S)) / service_s


@pytest.mark.parametrize("target", [0.5, 0.8, 0.9])
@pytest.mark.parametrize("guess_per_s", [0.02, 0.4, 7.0])
def test_the_rate_is_found_at_which_attainment_falls_to_the_target(
    prompts: Callable[..., Requests], target: float, guess_per_s: float
) -> None:
    traffic = source(prompts, rate_per_s=guess_per_s)
    found_per_s = saturated_rate(
        CLUSTER,
        slo(REMOTE_S + AFTER_REMOTE_S),
        lambda rate_per_s: traffic.at_rate(rate_per_s).episodes("test", 1),
        always_remote(),
        target=target,
        first_guess_per_s=guess_per_s,
    )
    assert found_per_s == pytest.approx(rate_at_which_attainment_is(target, REMOTE_S), rel=0.005)


@pytest.mark.parametrize(
    ("policy", "service_s", "after_s"),
    [(always_remote(), REMOTE_S, AFTER_REMOTE_S), (always_local(), LOCAL_S, 0.0)],
    ids=lambda value: value.name if isinstance(value, Policy) else "",
)
def test_goodput_is_the_rate_at_which_nine_of_ten_are_in_time(
    prompts: Callable[..., Requests], policy: Policy, service_s: float, after_s: float
) -> None:
    steps: list[None] = []
    found = goodputs_per_s(
        CLUSTER,
        slo(service_s + after_s),
        source(prompts, rate_per_s=0.3),
        [policy],
        on_done=lambda: steps.append(None),
    )
    assert found == {policy.name: pytest.approx(rate_at_which_attainment_is(TARGET, service_s), rel=0.005)}
    assert len(steps) == 1


def test_a_promise_that_cannot_be_kept_has_no_goodput_and_one_that_cannot_be_broken_an_endless_one(
    prompts: Callable[..., Requests],
) -> None:
    traffic = source(prompts, rate_per_s=0.001)
    impossible = Slo(kind="both", ttft_ms=1.0, ttft_us_per_prompt_token=0.0, tpot_ms=1.0)
    endless = Slo(kind="both", ttft_ms=1e9, ttft_us_per_prompt_token=0.0, tpot_ms=1e9)
    assert goodputs_per_s(CLUSTER, impossible, source(prompts, rate_per_s=0.3), [always_remote()]) == {
        "always-remote": 0.0
    }
    assert goodputs_per_s(CLUSTER, endless, traffic, [always_remote()]) == {"always-remote": np.inf}


def test_the_search_for_a_rate_ends_where_a_trace_has_no_more_requests(prompts: Callable[..., Requests]) -> None:
    trace = TraceWorkload(name="short", requests=prompts([64] * 500, list(range(500))))
    traffic = EpisodeSource(trace, 1.0, Window(period_s=50.0, settle_s=0.0, tail_s=0.0), 0)
    endless = Slo(kind="both", ttft_ms=1e9, ttft_us_per_prompt_token=0.0, tpot_ms=1e9)
    assert goodputs_per_s(CLUSTER, endless, traffic, [always_remote()]) == {"always-remote": np.inf}
