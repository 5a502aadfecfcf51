"""Hardware profiles: those that come with the package, and a user's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dolphin_router.contract import Split
from dolphin_sim.engine.step_time import decode_attention_s, prefill_s
from dolphin_sim.hardware import load_profile, profile_names
from dolphin_sim.hardware.law import engine_settings

# Milliseconds computed with aiconfigurator 0.12.0, vLLM back-end, 72B on four GPUs: prefill of 2,000 and 19,000 tokens,
# decode steps
# of 8 and 64 requests at a context of 8,192.
FIGURES = {
    "h200x4-72b": (127, 1_446, 14.3, 23.5),
    "h100x4-72b": (130, 1_366, 18.3, 31.0),
    "a100x4-72b": (336, 3_562, 33.7, 59.1),
}


def test_every_profile_loads_and_survives_a_round_trip(tmp_path: Path) -> None:
    assert {"h20x4-72b", *FIGURES} <= set(profile_names())
    for name in profile_names():
        profile = load_profile(name)
        path = tmp_path / f"{name}.json"
        path.write_text(profile.model_dump_json(), "utf-8")
        assert load_profile(str(path)) == profile


@pytest.mark.parametrize("name", FIGURES)
def test_a_profile_reproduces_its_figures_within_eight_per_cent(name: str) -> None:
    settings = engine_settings(load_profile(name), Split(prefill=1, decode=1), block_tokens=64)
    predicted = (
        prefill_s(settings, 2_000, 0, 8_192),
        prefill_s(settings, 19_000, 0, 8_192),
        settings.step_s[8] + decode_attention_s(settings, 8, 8 * 8_192.0),
        settings.step_s[64] + decode_attention_s(settings, 64, 64 * 8_192.0),
    )
    for seconds, figure_ms in zip(predicted, FIGURES[name], strict=True):
        assert 1e3 * seconds == pytest.approx(figure_ms, rel=0.08)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("peak_tflops", -1.0),
        ("kv_capacity_tokens", 1.5),
        ("attention_efficiency", 2.0),
        ("gemm_efficiency", [[512, 0.9], [64, 0.7]]),
        ("colour", "blue"),
    ],
)
def test_a_wrong_profile_is_refused_with_the_field_named(field: str, value: object, tmp_path: Path) -> None:
    document = json.loads(load_profile("h20x4-72b").model_dump_json())
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**document, field: value}), "utf-8")
    with pytest.raises(ValueError, match=f"mine.json.*{field}"):
        load_profile(str(path))
    with pytest.raises(ValueError, match=field):
        load_profile("h20x4-72b").replaced(**{field: value})


def test_an_unknown_profile_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(ValueError, match="h20x4-72b"):
        load_profile("nope")
