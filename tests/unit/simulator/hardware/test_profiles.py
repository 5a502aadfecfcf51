"""Hardware profiles: those that come with the package, and a user's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dolphin_router.contract import Split
from dolphin_sim.engine.state import Settings
from dolphin_sim.engine.step_time import attention_pairs, decode_attention_s, prefill_s
from dolphin_sim.hardware import load_profile, profile_names
from dolphin_sim.hardware.law import engine_settings

# Milliseconds computed with aiconfigurator 0.12.0, vLLM back-end, 72B on four GPUs: prefill of so many new tokens on so
# many cached ones, a step of so many decodes at a context of 2,048 and 8,192, and, with 32 decodes at 8,192, a chunk.
PREFILL_MS = {
    "h200x4-72b": {
        (200, 0): 19.3,
        (2_000, 0): 127,
        (8_088, 0): 536,
        (19_019, 0): 1_446,
        (3_800, 0): 248,
        (3_800, 15_219): 303,
    },
    "h100x4-72b": {(200, 0): 22.7, (2_000, 0): 130, (8_088, 0): 572, (19_019, 0): 1_366},
    "a100x4-72b": {(200, 0): 52.2, (2_000, 0): 336, (8_088, 0): 1_356, (19_019, 0): 3_562},
}
DECODE_MS = {
    "h200x4-72b": {1: (12.6, 12.8), 8: (13.2, 14.3), 32: (14.6, 18.2), 64: (16.5, 23.5)},
    "h100x4-72b": {1: (15.3, 15.5), 8: (16.7, 18.3), 32: (18.6, 23.7), 64: (21.1, 31.0)},
    "a100x4-72b": {1: (28.0, 29.0), 8: (30.8, 33.7), 32: (35.8, 46.6), 64: (40.5, 59.1)},
}
MIXED_MS = {"h200x4-72b": {256: 28, 512: 45, 1_024: 77, 2_048: 144, 4_096: 288}}


def settings_of(name: str) -> Settings:
    return engine_settings(load_profile(name), Split(prefill=1, decode=1), block_tokens=64)


def test_every_profile_loads_and_survives_a_round_trip(tmp_path: Path) -> None:
    assert {"h20x4-72b", *PREFILL_MS} <= set(profile_names())
    for name in profile_names():
        profile = load_profile(name)
        path = tmp_path / f"{name}.json"
        path.write_text(profile.model_dump_json(), "utf-8")
        assert load_profile(str(path)) == profile


@pytest.mark.parametrize("name", PREFILL_MS)
def test_a_profile_reproduces_prefills_within_eight_per_cent(name: str) -> None:
    for (new, cached), figure_ms in PREFILL_MS[name].items():
        assert 1e3 * prefill_s(settings_of(name), new, cached, 8_192) == pytest.approx(figure_ms, rel=0.08)


@pytest.mark.parametrize("name", DECODE_MS)
def test_a_profile_reproduces_decode_steps_within_eight_per_cent(name: str) -> None:
    settings = settings_of(name)
    for decodes, figures_ms in DECODE_MS[name].items():
        for context, figure_ms in zip((2_048, 8_192), figures_ms, strict=True):
            seconds = settings.step_s[decodes] + decode_attention_s(settings, decodes, float(decodes * context))
            assert 1e3 * seconds == pytest.approx(figure_ms, rel=0.08)


@pytest.mark.parametrize("name", MIXED_MS)
def test_a_profile_reproduces_mixed_steps_within_eight_per_cent(name: str) -> None:
    settings = settings_of(name)
    for chunk, figure_ms in MIXED_MS[name].items():
        seconds = (
            settings.step_s[chunk + 32]
            + settings.attention_s_per_pair * attention_pairs(float(chunk), 0.0)
            + decode_attention_s(settings, 32, 32 * 8_192.0)
        )
        assert 1e3 * seconds == pytest.approx(figure_ms, rel=0.08)


def test_a_replaced_value_leaves_the_rest_and_the_original_as_they_were() -> None:
    original = load_profile("h20x4-72b")
    changed = original.replaced(link_gb_per_s=9.7)
    assert changed.link_gb_per_s == 9.7
    assert original.link_gb_per_s == 39.0
    assert changed.replaced(link_gb_per_s=39.0) == original


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
