"""Splits and SLOs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dolphin_router.cli.wording import slo_text
from dolphin_router.contract import Slo, Split


@given(prefill=st.integers(1, 1024), decode=st.integers(1, 1024))
def test_a_split_is_what_its_text_says(prefill: int, decode: int) -> None:
    split = Split(prefill=prefill, decode=decode)
    assert str(split) == f"{prefill}P{decode}D"
    assert Split.parse(str(split)) == split


@pytest.mark.parametrize("text", ["", "2P", "2p2d", " 2P2D", "2P2D\n", "2P2D2", "-1P2D", "٢P2D", "2P" + "9" * 30 + "D"])
def test_a_text_of_another_form_is_no_split(text: str) -> None:
    with pytest.raises(ValueError, match="is not of the form 2P2D") as refused:
        Split.parse(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize("text", ["0P1D", "1P0D", "1025P1D", "1P1025D"])
def test_a_split_has_1_to_1024_workers_on_each_side(text: str) -> None:
    with pytest.raises(ValueError, match=f"split '{text}' is out of range: give 1 to 1024"):
        Split.parse(text)


def _slo(**changes: Any) -> Slo:
    fields: dict[str, Any] = {"kind": "both", "ttft_ms": 1000.0, "ttft_us_per_prompt_token": 0.0, "tpot_ms": 20.0}
    return Slo(**{**fields, **changes})


@pytest.mark.parametrize(
    ("ttft_ms", "tpot_ms", "both", "end_to_end"),
    [
        (1000.0, 20.0, True, True),
        (1000.5, 20.0, False, False),
        (1000.0, 20.5, False, False),
        (500.0, 25.0, False, True),  # 500 + 100 × 25 = 1000 + 100 × 20
        (500.0, 25.5, False, False),
        (3000.0, 0.0, False, True),
        (3000.5, 0.0, False, False),
    ],
)
def test_both_limits_hold_apart_and_end_to_end_together(
    ttft_ms: float, tpot_ms: float, both: bool, end_to_end: bool
) -> None:
    measured = {"prompt_tokens": 50.0, "output_tokens": 101.0, "ttft_ms": ttft_ms, "tpot_ms": tpot_ms}
    assert _slo(kind="both").is_met(**measured) is both
    assert _slo(kind="end-to-end").is_met(**measured) is end_to_end


@pytest.mark.parametrize("kind", ["both", "end-to-end"])
def test_a_longer_prompt_may_take_longer(kind: str) -> None:
    slo = _slo(kind=kind, ttft_us_per_prompt_token=500.0)
    assert slo.ttft_limit_ms(4000) == 3000.0
    assert slo.is_met(prompt_tokens=4000, output_tokens=10, ttft_ms=3000.0, tpot_ms=20.0)
    assert not slo.is_met(prompt_tokens=3999, output_tokens=10, ttft_ms=3000.0, tpot_ms=20.0)


@pytest.mark.parametrize("kind", ["both", "end-to-end"])
def test_an_answer_of_one_token_has_only_a_first_token(kind: str) -> None:
    slo = _slo(kind=kind)
    assert slo.is_met(prompt_tokens=10, output_tokens=1, ttft_ms=1000.0, tpot_ms=0.0)
    assert not slo.is_met(prompt_tokens=10, output_tokens=1, ttft_ms=1001.0, tpot_ms=0.0)


@given(
    prompt_tokens=st.integers(1, 100_000),
    output_tokens=st.integers(1, 10_000),
    ttft_ms=st.floats(0, 1e5),
    tpot_ms=st.floats(0, 200),
    slope=st.floats(0, 1000),
)
def test_who_holds_both_limits_holds_their_sum(
    prompt_tokens: int, output_tokens: int, ttft_ms: float, tpot_ms: float, slope: float
) -> None:
    measured = {
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "ttft_ms": ttft_ms,
        "tpot_ms": tpot_ms,
    }
    if _slo(ttft_us_per_prompt_token=slope).is_met(**measured):
        assert _slo(kind="end-to-end", ttft_us_per_prompt_token=slope).is_met(**measured)


def test_the_promise_is_told_in_words() -> None:
    both = Slo(kind="both", ttft_ms=8000.0, ttft_us_per_prompt_token=0.0, tpot_ms=20.0)
    assert slo_text(both) == "the first token within 8 s, and the later ones every 20 ms on average"
    whole = slo_text(Slo(kind="end-to-end", ttft_ms=500.0, ttft_us_per_prompt_token=250.0, tpot_ms=50.0))
    assert "0.5 s plus 250 ms for each 1,000 tokens of the prompt" in whole
    assert "50 ms for each token after the first" in whole
