"""Windows of a trace: rate, parts that share no row, places that the seed chooses, streams to the end."""

import itertools
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolphin_sim.workloads import Part, Requests, TraceWorkload
from dolphin_sim.workloads.arxiv import arxiv_workload
from dolphin_sim.workloads.trace_workload import window_start

ROWS = 4000


def numbered_trace() -> Requests:
    """A trace with about 2 requests/s whose answer lengths are the row numbers, from 1 on."""
    requests = arxiv_workload().episode(rate_per_s=2.0, duration_s=2500.0, seed=1, part="train").slice(0, ROWS)
    short = replace(
        requests,
        output_tokens=np.arange(1, ROWS + 1),
        prompt_tokens=np.full(ROWS, 100),
        block_ids=np.arange(ROWS),
        block_offsets=np.arange(ROWS + 1),
    )
    return short.check()


TRACE = numbered_trace()
WORKLOAD = TraceWorkload(name="numbered", requests=TRACE)


def rows_of(requests: Requests) -> set[int]:
    return set((requests.output_tokens - 1).tolist())


@pytest.mark.parametrize("rate_per_s", [0.5, 2.0, 8.0])
def test_windows_have_the_asked_rate_on_average(rate_per_s: float) -> None:
    duration_s = 200 / rate_per_s
    windows = [
        WORKLOAD.episode(rate_per_s=rate_per_s, duration_s=duration_s, seed=seed, part=part)
        for part in ("train", "test")
        for seed in range(8)
    ]
    assert np.mean([len(window.check()) for window in windows]) == pytest.approx(200, rel=0.08)
    assert all(window.arrival_s[0] >= 0 and window.arrival_s[-1] <= duration_s for window in windows)


def test_the_first_seeds_of_a_part_share_no_row_and_spread_over_it() -> None:
    window_rows = 160
    for part, first, last in (("train", 0, 2400), ("test", 2400, ROWS)):
        fit = int(0.9 * (last - first) / window_rows)
        windows = [
            rows_of(WORKLOAD.episode(rate_per_s=2.0, duration_s=window_rows / 2, seed=seed, part=part))  # type: ignore[arg-type]
            for seed in range(fit)
        ]
        covered = set().union(*windows)
        assert len(covered) == sum(map(len, windows))
        assert min(covered) >= first
        assert max(covered) < last
        assert len(covered) > 0.75 * (last - first)


def test_training_and_test_windows_share_no_row() -> None:
    train, test = (
        set().union(
            *(rows_of(WORKLOAD.episode(rate_per_s=1.0, duration_s=300.0, seed=seed, part=part)) for seed in range(40))
        )
        for part in ("train", "test")
    )
    assert max(train) < 0.6 * ROWS <= min(test)


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 100_000), st.floats(0, 10_000), st.floats(1, 500))
def test_every_seed_gives_a_window_inside_the_part(seed: int, room: float, length: float) -> None:
    assert 0 <= window_start(seed, room=room, length=length) <= room


@settings(deadline=None, max_examples=100)
@given(st.floats(0, 10_000), st.floats(50, 500))
def test_starts_are_different_and_the_first_do_not_overlap(room: float, length: float) -> None:
    fit = 1 + int(room / length)
    starts = sorted(window_start(seed, room=room, length=length) for seed in range(fit))
    assert all(later - earlier >= length * 0.999 for earlier, later in itertools.pairwise(starts))
    if room > 1:
        assert len({window_start(seed, room=room, length=length) for seed in range(4 * fit)}) == 4 * fit


def test_equal_seeds_give_equal_windows() -> None:
    def digest(seed: int, arrival: Literal["trace", "poisson"]) -> str:
        workload = replace(WORKLOAD, arrival=arrival)
        return workload.episode(rate_per_s=1.0, duration_s=100.0, seed=seed, part="test").digest()

    for arrival in ("trace", "poisson"):
        assert digest(3, arrival) == digest(3, arrival)
        assert digest(3, arrival) != digest(4, arrival)


@pytest.mark.parametrize("arrival", ["trace", "poisson", "bursty"])
@pytest.mark.parametrize(("part", "lasts"), [("train", 2400), ("test", 1600)])
def test_a_trace_that_is_too_short_says_what_to_do(arrival: Literal["poisson"], part: Part, lasts: float) -> None:
    workload = replace(WORKLOAD, arrival=arrival)
    message = r"trace numbered: its \w+ part lasts \d+ s at 1 requests/s, too short .* 3000 s; take a shorter window"
    with pytest.raises(ValueError, match=message):
        workload.episode(rate_per_s=1.0, duration_s=3000.0, seed=0, part=part)
    assert len(workload.episode(rate_per_s=1.0, duration_s=lasts * 0.6, seed=0, part=part)) > 0


def test_more_arrivals_than_rows_are_refused_with_both_numbers() -> None:
    # 2,400 rows at 1 request/s: this seed draws more for a window that just fits on average.
    workload = replace(WORKLOAD, arrival="bursty")
    with pytest.raises(ValueError, match=r"\d+ arrivals were drawn .* train part has 2400 rows; take a shorter window"):
        workload.episode(rate_per_s=1.0, duration_s=2400.0, seed=0, part="train")


def test_redrawn_windows_stay_inside_their_part() -> None:
    workload = replace(WORKLOAD, arrival="bursty")
    for seed in range(20):
        window = workload.episode(rate_per_s=1.0, duration_s=500.0, seed=seed, part="train")
        assert max(rows_of(window)) < 2400


def test_redrawn_arrivals_keep_the_rows_in_order() -> None:
    workload = replace(WORKLOAD, arrival="poisson")
    windows = [workload.episode(rate_per_s=3.0, duration_s=100.0, seed=seed, part="test") for seed in range(20)]
    for window in windows:
        assert (np.diff(window.check().output_tokens) == 1).all()
        assert window.output_tokens[0] > 2400
    assert np.mean([len(window) for window in windows]) == pytest.approx(300, rel=0.05)
    gaps_s = np.concatenate([np.diff(window.arrival_s) for window in windows])
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("arrival", ["trace", "poisson"])
def test_a_stream_ends_with_the_trace(arrival: Literal["trace", "poisson"]) -> None:
    workload = replace(WORKLOAD, arrival=arrival)
    batches = list(workload.stream(rate_per_s=4.0, seed=1, batch_s=70.0))
    for index, batch in enumerate(batches):
        batch.check()
        assert ((batch.arrival_s >= 70.0 * index) & (batch.arrival_s < 70.0 * (index + 1))).all()
    whole = Requests.concatenate(batches).check()
    assert np.array_equal(whole.output_tokens, TRACE.output_tokens)
    assert np.array_equal(whole.block_ids, TRACE.block_ids)
    assert ROWS / whole.arrival_s[-1] == pytest.approx(4.0, rel=0.05)


@pytest.mark.parametrize("requests", [TRACE.slice(0, 1), TRACE.slice(0, 9).with_arrivals(np.zeros(9))])
def test_a_trace_without_a_rate_is_refused(requests: Requests) -> None:
    with pytest.raises(ValueError, match="trace short: it has no rate"):
        TraceWorkload(name="short", requests=requests)


def test_windows_and_streams_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="rate_per_s: 0"):
        WORKLOAD.episode(rate_per_s=0.0, duration_s=10.0, seed=0, part="train")
    with pytest.raises(ValueError, match="batch_s: -1"):
        WORKLOAD.stream(rate_per_s=1.0, seed=0, batch_s=-1.0)
