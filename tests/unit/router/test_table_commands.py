"""``dolphin-router table ...``: what a person sees, and the exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dolphin_router.cli import main
from dolphin_router.contract import RoutingTable, save_table

TableBuilder = Callable[..., RoutingTable]
Capture = pytest.CaptureFixture[str]

# In standardised coordinates this request is 1.922 from the centre of cluster 3, and 2.351 from that of cluster 2:
# z = ((ln 8089 - 7) / 1.5, (ln 8089 - 6.5) / 1.25, (ln 89 - 6) / 2, (ln 401 - 5) / 0.75).
REQUEST = ["--prompt-tokens", "8088", "--prefill-cached", "0", "--decode-cached", "8000", "--output-tokens", "400"]


@pytest.fixture
def saved(tmp_path: Path, build_table: TableBuilder) -> Callable[..., str]:
    """A function that saves a table under a name and returns its path."""

    def save(name: str = "table.json", **changes: Any) -> str:
        save_table(tmp_path / name, build_table(**changes))
        return str(tmp_path / name)

    return save


def _one_line(text: str) -> str:
    assert text.count("\n") == 1
    assert text.endswith("\n")
    return text[:-1]


def test_version(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("dolphin-router ")


@pytest.mark.parametrize("arguments", [[], ["table"], ["table", "sing"], ["table", "show"], ["table", "diff", "one"]])
def test_incomplete_commands_end_with_one_line_and_2(arguments: list[str], capsys: Capture) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert "see dolphin-router" in _one_line(captured.err)
    assert captured.out == ""


def test_help_tells_the_exit_codes_of_diff(capsys: Capture) -> None:
    assert main(["table", "diff", "--help"]) == 0
    assert "Exit code 0: both make the same decision for every request" in capsys.readouterr().out


class TestShow:
    def test_says_what_the_table_holds(self, saved: Callable[..., str], capsys: Capture) -> None:
        assert main(["table", "show", saved()]) == 0
        out = capsys.readouterr().out
        assert "2P2D: 2 prefill, 2 decode workers" in out
        assert "the first token within 8 s, and the later ones every 20 ms on average" in out
        assert "4 (k-means)" in out
        # exp(7 + 1.5 · -0.5) - 1 tokens of prompt; remote was measured 0.01 better than local
        cluster = next(line.split() for line in out.splitlines() if line.split()[:1] == ["1"])
        assert cluster[:2] == ["1", "517"]
        assert cluster[5:8] == ["25.0%", "101", "remote"]
        assert " ".join(cluster[8:]) == "0.8100 ± 0.0100 0.8200 ± 0.0100 +0.0100 ± 0.0141"
        assert "guessed right 81.0%, learned from 4,000 requests" in out
        assert "scan-then-epsilon-greedy" in out
        scores = out[out.index("Scores") :]
        assert "90.00% to 92.00%" in scores
        assert scores.index("learned") < scores.index("always-local")

    def test_says_what_is_not_there(
        self, saved: Callable[..., str], build_table: TableBuilder, capsys: Capture
    ) -> None:
        provenance = {**build_table().provenance.model_dump(mode="json"), "scores": {}, "hardware_profile": None}
        slo = {"kind": "end-to-end", "ttft_ms": 500, "ttft_us_per_prompt_token": 250, "tpot_ms": 20}
        path = saved(mixture=True, routing_policy=None, output_model=None, provenance=provenance, slo=slo)
        assert main(["table", "show", path]) == 0
        out = capsys.readouterr().out
        assert "Output length: no model" in out
        assert (
            "the whole answer within 0.5 s plus 250 ms for each 1,000 tokens of the prompt plus 20 ms for each" in out
        )
        assert "4 (Gaussian mixture, full covariance)" in out
        assert "Scores" not in out

    def test_json_has_tokens_and_gains(self, saved: Callable[..., str], capsys: Capture) -> None:
        assert main(["table", "show", "--json", saved()]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["split"] == {"prefill": 2, "decode": 2}
        assert [cluster["action"] for cluster in shown["clusters"]] == ["local", "remote"] * 2
        assert shown["clusters"][1]["centre_tokens"]["prompt_tokens"] == pytest.approx(517.0, abs=0.5)
        assert shown["clusters"][0]["gain"] is None
        gain = shown["clusters"][3]["gain"]
        assert gain == {"mean": pytest.approx(-0.01), "standard_error": pytest.approx(0.02**0.5 / 10)}


class TestValidate:
    def test_good_files_are_ok(self, saved: Callable[..., str], capsys: Capture) -> None:
        paths = [saved("a.json"), saved("b.json", clusters=5)]
        assert main(["table", "validate", *paths]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split(", sha256")[0] for line in lines] == [
            f"{paths[0]}: ok, 2P2D, 4 clusters",
            f"{paths[1]}: ok, 2P2D, 5 clusters",
        ]

    def test_one_bad_file_does_not_hide_the_others(
        self, tmp_path: Path, saved: Callable[..., str], capsys: Capture
    ) -> None:
        good = saved()
        bad = tmp_path / "bad.json"
        bad.write_text(Path(good).read_text().replace('"seed":7', '"seed":8'))
        assert main(["table", "validate", str(bad), str(tmp_path / "absent.json"), good]) == 2
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith(f"{bad}: digest does not fit the content")
        assert "absent.json: cannot be read: No such file or directory" in lines[1]
        assert lines[2].startswith(f"{good}: ok")


class TestExplain:
    def test_says_cluster_distance_action_and_why(self, saved: Callable[..., str], capsys: Capture) -> None:
        assert main(["table", "explain", saved(), *REQUEST]) == 0
        lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
        assert " ".join(lines["cluster"].split()) == "cluster 3 at distance 1.922, action remote"
        assert " ".join(lines["runner-up"].split()) == "runner-up 2 at distance 2.351, action local"
        assert lines["action"].split() == ["action", "remote"]
        assert "cluster 3 is the nearest, and its learned action is remote" in lines["why"]
        assert "local 0.8300 ± 0.0100, remote 0.8200 ± 0.0100, gain -0.0100 ± 0.0141, within the noise" in lines["why"]
        assert lines["prompt_tokens"].split()[1:4] == ["8,088", "2,321", "+5,767"]
        assert lines["decode_effective_tokens"].split()[1:4] == ["88", "89", "-1.0"]

    def test_says_what_was_never_measured(self, saved: Callable[..., str], capsys: Capture) -> None:
        tiny = ["--prompt-tokens", "100", "--output-tokens", "150"]
        assert main(["table", "explain", saved(), *tiny]) == 0
        assert "measured there: local, so the gain is unknown" in capsys.readouterr().out

    def test_a_single_cluster_has_no_runner_up(self, saved: Callable[..., str], capsys: Capture) -> None:
        path = saved(clusters=1, mixture=True)
        assert main(["table", "explain", path, *REQUEST]) == 0
        out = capsys.readouterr().out
        assert "cluster 0 is the likeliest" in out
        assert "log density" in out
        assert any(line.split() == ["runner-up", "none"] for line in out.splitlines())
        assert main(["table", "explain", path, *REQUEST, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["runner_up"] is None

    @pytest.mark.parametrize("mixture", [False, True])
    def test_json(self, mixture: bool, saved: Callable[..., str], capsys: Capture) -> None:
        assert main(["table", "explain", saved(mixture=mixture), *REQUEST, "--json"]) == 0
        explained = json.loads(capsys.readouterr().out)
        assert (explained["cluster"], explained["action"], explained["reason"]) == (3, "remote", "cluster")
        assert explained["distance"] == pytest.approx(1.922, abs=1e-3)
        assert explained["runner_up"]["cluster"] == 2
        assert explained["runner_up"]["distance"] == pytest.approx(2.351, abs=1e-3)
        assert (explained["runner_up"]["log_density"] is None) is not mixture
        feature = explained["features"]["prompt_tokens"]
        assert feature["tokens"] == 8088
        assert feature["difference_z"] == pytest.approx(feature["z"] - 0.5)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--output-tokens", "1"], "--prompt-tokens"),
            (["--prompt-tokens", "-5", "--output-tokens", "1"], "'-5' is not a token count"),
            (["--prompt-tokens", "1.5", "--output-tokens", "1"], "'1.5' is not a token count"),
            (["--prompt-tokens", "9" * 13, "--output-tokens", "1"], "is not a token count"),
            (
                ["--prompt-tokens", "8", "--prefill-cached", "9", "--output-tokens", "1"],
                "--prefill-cached: 9 is more than the 8 tokens of the prompt",
            ),
            (
                ["--prompt-tokens", "8", "--decode-cached", "9", "--output-tokens", "1"],
                "--decode-cached: 9 is more than the 8 tokens of the prompt",
            ),
        ],
    )
    def test_bad_numbers_end_with_one_line_and_2(
        self, arguments: list[str], message: str, saved: Callable[..., str], capsys: Capture
    ) -> None:
        assert main(["table", "explain", saved(), *arguments]) == 2
        captured = capsys.readouterr()
        assert message in _one_line(captured.err)
        assert captured.out == ""


class TestDiff:
    def test_equal_decisions_are_0_even_when_split_and_scores_differ(
        self, saved: Callable[..., str], build_table: TableBuilder, capsys: Capture
    ) -> None:
        provenance = {
            **build_table().provenance.model_dump(mode="json"),
            "scores": {
                "learned": {"attainment": 0.95, "interval": None},
                "llm-d": {"attainment": 0.5, "interval": None},
            },
        }
        a, b = saved("a.json"), saved("b.json", split={"prefill": 3, "decode": 1}, provenance=provenance)
        assert main(["table", "diff", a, b]) == 0
        lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
        assert lines["decisions"].endswith("same for every request")
        assert lines["split"].endswith("2P2D -> 3P1D")
        assert lines["learned"].split()[1:] == ["91.00%", "95.00%", "+4.00", "points"]
        assert lines["always-local"].split()[1:] == ["74.00%", "-", "-"]
        assert lines["llm-d"].split()[1:] == ["-", "50.00%", "-"]

    def test_the_order_of_clusters_does_not_matter(
        self, saved: Callable[..., str], build_table: TableBuilder, capsys: Capture
    ) -> None:
        decider = build_table().decider.model_dump(mode="json")
        turned = {**decider, "clusters": decider["clusters"][::-1]}
        assert main(["table", "diff", saved("a.json"), saved("b.json", decider=turned), "--json"]) == 0
        compared = json.loads(capsys.readouterr().out)
        assert compared["same_decisions"] is True
        assert [(pair["a"], pair["b"]) for pair in compared["clusters"]] == [(0, 3), (1, 2), (2, 1), (3, 0)]
        assert all(pair["distance"] == 0 for pair in compared["clusters"])

    def test_another_action_is_1_and_shown(
        self, saved: Callable[..., str], build_table: TableBuilder, capsys: Capture
    ) -> None:
        decider = build_table().decider.model_dump(mode="json")
        decider["clusters"][2]["action"] = "remote"
        a, b = saved("a.json"), saved("b.json", decider=decider)
        assert main(["table", "diff", a, b]) == 1
        assert "local -> remote" in capsys.readouterr().out
        assert main(["table", "diff", a, b, "--json"]) == 1
        actions = [pair["action"] for pair in json.loads(capsys.readouterr().out)["clusters"]]
        assert [action["a"] != action["b"] for action in actions] == [False, False, True, False]

    def test_clusters_without_a_counterpart_are_listed(self, saved: Callable[..., str], capsys: Capture) -> None:
        a, b = saved("a.json", clusters=2), saved("b.json", clusters=3, mixture=True)
        for first, second, unmatched in ((a, b, (None, 2)), (b, a, (2, None))):
            assert main(["table", "diff", first, second, "--json"]) == 1
            pairs = json.loads(capsys.readouterr().out)["clusters"]
            assert [(pair["a"], pair["b"]) for pair in pairs] == [(0, 0), (1, 1), unmatched]
        assert main(["table", "diff", a, b]) == 1
        assert "2 (k-means) -> 3 (Gaussian mixture, full covariance)" in capsys.readouterr().out

    def test_another_output_model_is_another_decision(self, saved: Callable[..., str], capsys: Capture) -> None:
        assert main(["table", "diff", saved("a.json"), saved("b.json", output_model=None)]) == 1
        assert "output model  different" in capsys.readouterr().out

    def test_the_accuracy_of_the_output_model_decides_nothing(
        self, saved: Callable[..., str], build_table: TableBuilder
    ) -> None:
        model = build_table().output_model
        assert model is not None
        recounted = {**model.model_dump(mode="json"), "accuracy": 0.5, "samples": 1}
        assert main(["table", "diff", saved("a.json"), saved("b.json", output_model=recounted)]) == 0


@pytest.mark.parametrize("command", [["show"], ["explain", *REQUEST], ["diff", __file__]])
@pytest.mark.parametrize("content", [None, b"\xff", b"{}"], ids=["absent", "not UTF-8", "no table"])
def test_a_file_that_is_no_table_ends_with_one_line_and_2(
    command: list[str], content: bytes | None, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_bytes(content)
    assert main(["table", command[0], str(path), *command[1:]]) == 2
    captured = capsys.readouterr()
    assert _one_line(captured.err).startswith(f"dolphin-router: {path}: ")
    assert captured.out == ""


def test_a_reader_that_stops_early_gets_no_traceback(saved: Callable[..., str]) -> None:
    path = saved(clusters=30)
    program = "import sys; from dolphin_router.cli import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "table", "show", "--json", path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors == b""
