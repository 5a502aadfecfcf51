"""The rules of deployed routers, case by case, as their sources have them."""

from __future__ import annotations

import pytest

from dolphin_sim.rules.dynamo import is_bypassed_by_length, is_prefill_busy
from dolphin_sim.rules.length import is_remote_by_llm_d


@pytest.mark.parametrize(
    ("prompt", "cached", "local"),
    [
        (198, 0, False),
        (198, 192, True),
        (8_088, 0, False),
        (4_000, 0, False),
        (4_000, 3_968, True),
        (1_000, 896, True),
        (2_920, 896, True),
        (6_826, 4_779, True),
        (6_826, 4_778, False),
        (19_019, 15_168, False),
        (100_000, 64_000, False),
        (500, 640, True),
        (0, 0, True),
    ],
)
def test_isl_bounding_with_its_defaults(prompt: int, cached: int, local: bool) -> None:
    rule = getattr(is_bypassed_by_length, "py_func", is_bypassed_by_length)
    assert rule(prompt, cached, 2_048.0, 0.7) is local


def test_a_prefill_worker_is_busy_above_its_threshold_only() -> None:
    rule = getattr(is_prefill_busy, "py_func", is_prefill_busy)
    assert not rule(8_192, 1.0, 8_192)
    assert rule(8_193, 1.0, 8_192)


@pytest.mark.parametrize(
    ("prompt", "cached", "threshold", "remote"),
    [(8_000, 0, 0, False), (15, 0, 16, False), (16, 0, 16, True), (8_000, 7_990, 16, False), (8_000, 7_984, 16, True)],
)
def test_llm_d_with_exact_counts(prompt: int, cached: int, threshold: int, remote: bool) -> None:
    rule = getattr(is_remote_by_llm_d, "py_func", is_remote_by_llm_d)
    assert rule(prompt, cached, threshold) is remote
