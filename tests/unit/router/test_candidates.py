"""The workers that a request would go to."""

from __future__ import annotations

from dolphin_router.candidates import choose_decode_worker, choose_prefill_worker


def test_prefill_goes_to_the_worker_with_the_least_work_before_the_first_token() -> None:
    assert choose_prefill_worker(1000, [0, 800], [0, 0], 2) == 1  # half the prompt is cached there
    assert choose_prefill_worker(1000, [0, 800], [0, 900], 2) == 0  # but it is busier than the cache saves
    assert choose_prefill_worker(1000, [0, 0, 0], [5, 3, 4], 3) == 1


def test_decode_counts_the_contexts_it_holds_and_the_prefills_it_runs() -> None:
    assert choose_decode_worker(1000, [0, 0], [0, 0], [9000, 8000], 2) == 1
    assert choose_decode_worker(1000, [0, 0], [0, 2000], [9000, 8000], 2) == 0
    assert choose_decode_worker(1000, [900, 0], [0, 0], [8500, 8000], 2) == 0


def test_the_first_of_equal_workers_is_chosen() -> None:
    assert choose_prefill_worker(10, [0, 0, 0], [7, 7, 7], 3) == 0
    assert choose_decode_worker(10, [0, 0, 0], [7, 7, 7], [1, 1, 1], 3) == 0


def test_only_the_first_workers_of_longer_sequences_count() -> None:
    assert choose_prefill_worker(10, [0, 0, 10], [0, 0, 0], 2) == 0
