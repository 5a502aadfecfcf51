"""The generators: published means and reuse, steady state from the first second, seeds and parts."""

import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

from dolphin_sim.workloads import WORKLOAD_NAMES, Requests, Workload, reuse_with_endless_cache, workload_by_name
from dolphin_sim.workloads.hybrid import hybrid_workload
from dolphin_sim.workloads.leval import OPEN_DOCUMENTS, QUESTIONS, leval_workload
from dolphin_sim.workloads.statistics import cached_tokens_with_endless_cache

LONG: dict[str, Requests] = {}


@pytest.fixture(params=WORKLOAD_NAMES)
def workload(request: pytest.FixtureRequest) -> Workload:
    return workload_by_name(str(request.param))


def long_episode(name: str) -> Requests:
    """10,000 s at 2 requests/s, made once."""
    if name not in LONG:
        LONG[name] = workload_by_name(name).episode(rate_per_s=2.0, duration_s=10_000.0, seed=7, part="train")
    return LONG[name]


@pytest.mark.parametrize(
    ("name", "prompt_mean", "output_mean", "tolerance"),
    [
        ("arxiv", 8088, 250, 0.02),
        ("leval", 19_019, 90, 0.04),
        ("humaneval", 198, 300, 0.02),
        ("hybrid", (8088 + 19_019 + 198) / 3, (250 + 90 + 300) / 3, 0.04),
    ],
)
def test_lengths_have_the_published_means(name: str, prompt_mean: float, output_mean: float, tolerance: float) -> None:
    requests = long_episode(name)
    assert requests.prompt_tokens.mean() == pytest.approx(prompt_mean, rel=tolerance)
    assert requests.output_tokens.mean() == pytest.approx(output_mean, rel=tolerance)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("arxiv", 0, 0), ("humaneval", 0, 0), ("leval", 0.80, 0.84), ("hybrid", 0.53, 0.60), ("chat", 0.75, 0.90)],
)
def test_prefixes_are_shared_as_much_as_the_workload_says(name: str, low: float, high: float) -> None:
    assert low <= reuse_with_endless_cache(long_episode(name)) <= high


def test_agents_append_short_turns_to_a_long_prefix() -> None:
    requests = long_episode("agent")
    new_tokens = requests.prompt_tokens - cached_tokens_with_endless_cache(requests)
    assert requests.prompt_tokens.mean() > 8000
    assert np.median(new_tokens) < 500
    assert np.median(requests.output_tokens) < 100 < requests.output_tokens.mean()
    assert (requests.output_tokens > 400).mean() > 0.05
    assert requests.tools.mean() > 0.9


def test_prompts_of_a_conversation_grow_turn_by_turn() -> None:
    requests = long_episode("chat")
    later = requests.turns > 8
    assert requests.prompt_tokens[later].mean() > 2 * requests.prompt_tokens[requests.turns == 1].mean()


def test_questions_on_a_document_come_back_within_minutes_and_between_others() -> None:
    requests = leval_workload().episode(rate_per_s=0.5, duration_s=20_000.0, seed=1, part="test")
    first_block = requests.block_ids[requests.block_offsets[:-1]]
    order = np.lexsort((requests.arrival_s, first_block))
    same = np.diff(first_block[order]) == 0
    waits_s = np.diff(requests.arrival_s[order])[same]
    assert waits_s.mean() == pytest.approx(OPEN_DOCUMENTS / 0.5, rel=0.1)
    assert np.percentile(waits_s, 99) < 300
    assert (np.diff(order)[same] == 1).mean() < 0.2


def test_documents_open_at_the_start_are_at_any_of_their_questions() -> None:
    workload = leval_workload(open_documents=4)
    counts = []
    for seed in range(400):
        requests = workload.episode(rate_per_s=1.0, duration_s=200.0, seed=seed, part="train")
        first_block = requests.block_ids[requests.block_offsets[:-1]]
        counts.append((first_block == first_block[0]).sum())
    # The document of the first request is met in proportion to its questions, and half of the others are over.
    met = (QUESTIONS.shares @ QUESTIONS.numbers**2) / QUESTIONS.mean
    assert np.mean(counts) == pytest.approx((met + 1) / 2, rel=0.12)


def test_every_workload_keeps_the_promises_of_the_columns(workload: Workload) -> None:
    for arrival in ("poisson", "bursty"):
        bursty = workload_by_name(workload.name, arrival=arrival)
        requests = bursty.episode(rate_per_s=1.5, duration_s=400.0, seed=3, part="test").check()
        assert requests.arrival_s[-1] < 400
        assert requests.block_tokens == workload.block_tokens == 64
        stated = requests.max_tokens > 0
        assert (requests.output_tokens <= requests.max_tokens)[stated].all()


@pytest.mark.parametrize("arrival", ["poisson", "bursty"])
def test_requests_arrive_at_the_asked_rate(workload: Workload, arrival: str) -> None:
    process = workload_by_name(workload.name, arrival=arrival)  # type: ignore[arg-type]
    counts = [len(process.episode(rate_per_s=0.8, duration_s=500.0, seed=seed, part="train")) for seed in range(40)]
    error = np.std(counts, ddof=1) / np.sqrt(len(counts))
    assert error < 0.06 * 400
    assert abs(np.mean(counts) - 400) < 3.5 * error


def test_episodes_are_in_steady_state_from_the_start(workload: Workload) -> None:
    # Means over many windows, so that a window that opens on empty documents or first turns only would be seen.
    windows = [workload.episode(rate_per_s=2.0, duration_s=120.0, seed=seed, part="test") for seed in range(150)]
    for value in (lambda part: len(part), lambda part: part.turns.sum(), lambda part: part.prompt_tokens.sum()):
        halves = np.array([[value(part.between(0, 60)), value(part.between(60, 120))] for part in windows], np.float64)
        difference = halves[:, 1] - halves[:, 0]
        assert abs(difference.mean()) < 3.5 * difference.std(ddof=1) / np.sqrt(len(windows))


@pytest.mark.parametrize("name", ["leval", "hybrid", "chat", "agent"])
def test_reuse_is_the_same_in_both_halves_once_the_cache_is_warm(name: str) -> None:
    requests = long_episode(name)
    halves = [
        reuse_with_endless_cache(requests, counted=(requests.arrival_s >= start) & (requests.arrival_s < start + 4500))
        for start in (1000.0, 5500.0)
    ]
    assert halves[0] == pytest.approx(halves[1], abs=0.025)


def test_equal_arguments_give_equal_bytes_and_others_do_not(workload: Workload) -> None:
    def digest(seed: int, part: str) -> str:
        return workload.episode(rate_per_s=1.0, duration_s=200.0, seed=seed, part=part).digest()  # type: ignore[arg-type]

    assert digest(1, "train") == digest(1, "train")
    digests = {digest(seed, part) for seed in (1, 2) for part in ("train", "test")}
    assert len(digests) == 4


def test_parts_and_seeds_are_uncorrelated() -> None:
    workload = workload_by_name("humaneval")

    def lengths(seed: int, part: str) -> np.ndarray:
        window = workload.episode(rate_per_s=5.0, duration_s=1000.0, seed=seed, part=part)  # type: ignore[arg-type]
        return window.prompt_tokens[:4500].astype(np.float64)

    for other in (lengths(0, "test"), lengths(1, "train")):
        assert abs(np.corrcoef(lengths(0, "train"), other)[0, 1]) < 0.06


def take(stream: Iterator[Requests], count: int) -> list[Requests]:
    return [next(stream) for _ in range(count)]


def test_a_stream_goes_on_with_times_and_never_gives_a_block_id_a_second_meaning(workload: Workload) -> None:
    batches = take(workload.stream(rate_per_s=2.0, seed=5, batch_s=50.0), 30)
    for index, batch in enumerate(batches):
        batch.check()
        assert ((batch.arrival_s >= 50.0 * index) & (batch.arrival_s < 50.0 * (index + 1))).all()
    whole = Requests.concatenate(batches).check()
    assert len(whole) == pytest.approx(3000, rel=0.15)
    # Only what is still open is seen again: the ids of the last batches are new ones but for system prompts.
    early, late = (set(part.block_ids.tolist()) for part in (batches[0], batches[-1]))
    assert max(late) > max(early)


def test_a_stream_reuses_as_much_as_an_episode() -> None:
    whole = Requests.concatenate(take(workload_by_name("leval").stream(rate_per_s=2.0, seed=5, batch_s=20.0), 250))
    assert reuse_with_endless_cache(whole) == pytest.approx(reuse_with_endless_cache(long_episode("leval")), abs=0.02)


@pytest.mark.parametrize("name", ["hybrid", "chat"])
def test_a_stream_holds_no_more_than_what_is_open(name: str) -> None:
    stream = workload_by_name(name).stream(rate_per_s=1.0, seed=2, batch_s=500.0)
    take(stream, 15)
    tracemalloc.start()
    try:
        held = []
        for _ in range(2):
            take(stream, 15)
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[1] < held[0] + 300_000


def test_a_stream_is_deterministic_and_seeds_matter(workload: Workload) -> None:
    def digests(seed: int) -> list[str]:
        return [batch.digest() for batch in take(workload.stream(rate_per_s=1.0, seed=seed, batch_s=60.0), 3)]

    assert digests(1) == digests(1)
    assert not set(digests(1)) & set(digests(2))


def test_hybrid_takes_other_shares() -> None:
    mix = hybrid_workload(shares={"humaneval": 0.35, "arxiv": 0.25, "leval": 0.40})
    requests = mix.episode(rate_per_s=10.0, duration_s=1000.0, seed=1, part="train").check()
    shares = np.bincount(requests.component) / len(requests)
    assert requests.component_names == ("humaneval", "arxiv", "leval")
    assert shares == pytest.approx([0.35, 0.25, 0.40], abs=0.02)
    assert requests.prompt_tokens[requests.component == 0].max() < 1000


def test_hybrid_has_a_third_of_each_by_default() -> None:
    requests = long_episode("hybrid")
    assert np.bincount(requests.component) / len(requests) == pytest.approx([1 / 3] * 3, abs=0.02)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"arxiv": 0.5, "chat": 0.5}, "'chat' is not a component"),
        ({"arxiv": 0.5, "leval": 0.4}, "sum to 0.9"),
        ({"arxiv": 1.5, "leval": -0.5}, "share of leval is -0.5"),
        ({"arxiv": 1.0, "leval": float("nan")}, "share of leval is nan"),
        ({}, "sum to 0"),
    ],
)
def test_hybrid_refuses_shares_that_make_no_mix(shares: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hybrid_workload(shares=shares)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rate_per_s": 0.0}, "rate_per_s: 0.0"),
        ({"rate_per_s": float("nan")}, "rate_per_s: nan"),
        ({"duration_s": -1.0}, "duration_s or batch_s: -1.0"),
        ({"duration_s": float("inf")}, "duration_s or batch_s: inf"),
        ({"seed": -1}, "seed: -1"),
        ({"part": "validation"}, "part: 'validation'"),
    ],
)
def test_a_window_that_cannot_be_is_refused(workload: Workload, change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"rate_per_s": 1.0, "duration_s": 10.0, "seed": 0, "part": "train"} | change
    with pytest.raises(ValueError, match=message):
        workload.episode(**arguments)  # type: ignore[arg-type]


def test_a_stream_that_cannot_be_is_refused_at_once(workload: Workload) -> None:
    with pytest.raises(ValueError, match="batch_s: 0"):
        workload.stream(rate_per_s=1.0, seed=0, batch_s=0.0)


def test_a_window_without_requests_is_legal(workload: Workload) -> None:
    assert len(workload.episode(rate_per_s=1e-9, duration_s=1.0, seed=0, part="train").check()) == 0


def test_what_clients_state_tells_something_about_the_answer_and_not_all() -> None:
    workload = workload_by_name("hybrid")
    known = workload.episode(rate_per_s=5.0, duration_s=2000.0, seed=1, part="train")
    fresh = workload.episode(rate_per_s=5.0, duration_s=2000.0, seed=1, part="test")
    bounds = np.percentile(known.output_tokens, [100 / 3, 200 / 3])

    def stated(requests: Requests) -> list[tuple[int, int]]:
        return list(zip(requests.max_tokens.tolist(), requests.system_hash.tolist(), strict=True))

    counts: dict[tuple[int, int], np.ndarray] = {}
    for key, answer in zip(stated(known), np.searchsorted(bounds, known.output_tokens), strict=True):
        counts.setdefault(key, np.zeros(3))[answer] += 1
    guesses = np.array([counts.get(key, np.zeros(3)).argmax() for key in stated(fresh)])
    right = (guesses == np.searchsorted(bounds, fresh.output_tokens)).mean()
    assert 0.50 < right < 0.90
