"""The policy that ``dolphin-sim run`` follows: a rule with its numbers, or a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dolphin_router.contract import FORMAT, INPUT_NAMES, TableContent, save_table, seal
from dolphin_sim.cli import main

QUICK = ["run", "--period-s", "60", "--settle-s", "10", "--json", "-"]
Capture = pytest.CaptureFixture[str]


def _figures(capsys: Capture, *arguments: str) -> dict[str, Any]:
    """What a short run gives, without the speed, which no two runs share."""
    assert main([*QUICK, *arguments]) == 0
    figures: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {name: value for name, value in figures.items() if name not in ("policy", "simulated_s_per_wall_s")}


def _cluster(output_z: float, action: str) -> dict[str, Any]:
    return {
        "centre": [0.0, 0.0, 0.0, output_z],
        "action": action,
        "share": 0.5,
        "samples": 100,
        "rewards": {"local": None, "remote": None},
        "weight": None,
        "precision_cholesky": None,
    }


def _save_table(path: Path, *, expected_lengths: str) -> str:
    """Save a table that sends long answers remote and short ones local, and expects all answers to be long."""
    width = len(INPUT_NAMES)
    content = {
        "format": FORMAT,
        "routing_policy": {"name": "chat", "uid": "1", "generation": 1},
        "split": {"prefill": 2, "decode": 2},
        "slo": {"kind": "both", "ttft_ms": 8000, "ttft_us_per_prompt_token": 0, "tpot_ms": 20},
        "features": ["prompt_tokens", "prefill_effective_tokens", "decode_effective_tokens", "output_tokens"],
        "decider": {
            "kind": "bits",
            # The lengths of prompts hardly count, so that the expected answer alone decides.
            "transform": {"mean": [0, 0, 0, 0], "scale": [1000, 1000, 1000, 1]},
            "clustering": {"kind": "kmeans"},
            "clusters": [_cluster(0.0, "local"), _cluster(7.0, "remote")],
        },
        "output_model": {
            "inputs": INPUT_NAMES,
            "classes": [{"name": "long", "upper_bound_tokens": None, "representative_tokens": 1000}],
            "mean": [0] * width,
            "scale": [1] * width,
            "weights": [[0] * width],
            "intercepts": [0],
            "accuracy": 1,
            "samples": 100,
        },
        "provenance": {
            "sampler": "none",
            "sampler_settings": {},
            "reward": "none",
            "seed": 0,
            "rounds": 0,
            "periods_per_round": 1,
            "period_s": None,
            "settle_s": None,
            "arrivals": None,
            "arrival_rate_per_s": None,
            "environment": "simulated",
            "hardware_profile": None,
            "workload": "hybrid",
            "workload_digest": None,
            "expected_lengths": expected_lengths,
            "expected_lengths_accuracy": None,
            "clustering_initialisations": None,
            "scores": {},
        },
        "created_at": "2026-01-31T12:00:00Z",
        "software_version": "0.1.0",
    }
    save_table(path, seal(TableContent.model_validate_json(json.dumps(content))))
    return str(path)


def test_equal_arguments_give_equal_figures(capsys: Capture) -> None:
    assert _figures(capsys, "--seed", "3") == _figures(capsys, "--seed", "3")


def test_a_threshold_says_which_prompts_go_remote(capsys: Capture) -> None:
    everything = _figures(capsys, "--policy", "tuned-length", "--parameter", "0")
    nothing = _figures(capsys, "--policy", "tuned-length", "--parameter", "1e9")
    assert everything == _figures(capsys, "--policy", "always-remote")
    assert nothing == _figures(capsys, "--policy", "always-local")
    assert (everything["remote_share"], nothing["remote_share"]) == (1.0, 0.0)


def test_the_numbers_of_a_rule_may_be_left_out_where_it_has_defaults(capsys: Capture) -> None:
    given = _figures(capsys, "--policy", "dynamo-isl-bounding", "--parameter", "2048", "--parameter", "0.7")
    assert given == _figures(capsys, "--policy", "dynamo-isl-bounding")


def test_a_table_decides_by_the_lengths_that_its_model_expects(tmp_path: Path, capsys: Capture) -> None:
    table = _save_table(tmp_path / "table.json", expected_lengths="trained")
    assert _figures(capsys, "--policy", table)["remote_share"] == 1.0


def test_a_table_learned_without_expected_lengths_is_simulated_without(tmp_path: Path, capsys: Capture) -> None:
    table = _save_table(tmp_path / "table.json", expected_lengths="none")
    assert _figures(capsys, "--policy", table)["remote_share"] == 0.0


def test_what_can_never_fit_is_counted_and_has_no_latency(capsys: Capture) -> None:
    figures = _figures(capsys, "--set", "kv_capacity_tokens=1000")
    assert 0 < figures["rejected"] <= figures["requests"]
    assert figures["attainment"] <= 1 - figures["rejected"] / figures["requests"]
    assert figures["ttft_ms"]["p99"] is None


def test_json_goes_to_a_file_beside_the_text(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "figures.json"
    assert main([*QUICK, "--json", str(path)]) == 0
    figures = json.loads(path.read_text("utf-8"))
    assert figures["requests"] > 0
    assert f"{figures['attainment']:.1%}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("policy", "numbers", "named"),
    [
        ("tuned-length", [], "threshold_tokens"),
        ("tuned-cost", ["1", "2"], "takes 1"),
        ("tuned-cost", ["-1"], "below 0"),
        ("llm-d", ["many"], "many"),
        ("dynamo-isl-or-load", ["2048"], "busy_threshold"),
        ("always-local", ["1"], "takes no numbers"),
    ],
)
def test_wrong_numbers_are_refused(policy: str, numbers: list[str], named: str, capsys: Capture) -> None:
    given = [word for number in numbers for word in ("--parameter", number)]
    assert main([*QUICK, "--policy", policy, *given]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert named in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("option", ["--policy", "--profile", "--workload"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"{}", b"nonsense\n"])
def test_files_that_are_something_else_are_refused(
    option: str, content: bytes, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "spoilt"
    path.write_bytes(content)
    assert main([*QUICK, "--rate", "1", option, str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert str(path) in captured.err
    assert captured.err.count("\n") == 1
