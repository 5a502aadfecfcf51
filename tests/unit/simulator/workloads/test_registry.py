"""Names and paths of workloads."""

from pathlib import Path

import pytest

from dolphin_sim.workloads import WORKLOAD_NAMES, TraceError, workload_by_name

TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03,100,6
2023-11-16 18:17:05,200,7
2023-11-16 18:17:07,300,8
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "my_trace.csv"
    path.write_text(TRACE)
    return path


def test_every_name_gives_the_workload_of_that_name() -> None:
    assert set(WORKLOAD_NAMES) == {"arxiv", "leval", "humaneval", "hybrid", "chat", "agent"}
    assert [workload_by_name(name).name for name in WORKLOAD_NAMES] == list(WORKLOAD_NAMES)


def test_a_path_gives_the_trace_named_after_its_file(trace: Path) -> None:
    for given in (trace, str(trace)):
        workload = workload_by_name(given)
        assert workload.name == "my_trace"
        (requests,) = workload.stream(rate_per_s=0.5, seed=0, batch_s=100.0)
        assert requests.component_names == ("my_trace",)
        assert requests.arrival_s.tolist() == [0.0, 2.0, 4.0]


def test_arrivals_of_a_trace_can_be_drawn_anew(trace: Path) -> None:
    workload = workload_by_name(trace, arrival="poisson")
    (requests,) = workload.stream(rate_per_s=0.5, seed=0, batch_s=1000.0)
    assert requests.prompt_tokens.tolist() == [100, 200, 300]
    assert requests.arrival_s.tolist() != [0.0, 2.0, 4.0]


def test_an_unknown_name_lists_the_names_and_mentions_paths() -> None:
    with pytest.raises(ValueError, match=r"'hybird' is neither .*agent, arxiv, .*leval.* path of a Mooncake or Azure"):
        workload_by_name("hybird")


def test_a_folder_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither a name nor a file"):
        workload_by_name(tmp_path)


def test_arrivals_that_do_not_fit_are_refused(trace: Path) -> None:
    with pytest.raises(ValueError, match="'trace' needs a trace, and chat is a generator"):
        workload_by_name("chat", arrival="trace")
    with pytest.raises(ValueError, match="'weekly' is not"):
        workload_by_name(trace, arrival="weekly")  # type: ignore[arg-type]


def test_a_truncated_trace_needs_consent(trace: Path) -> None:
    trace.write_text(TRACE + "2023-11-16 18:1")
    with pytest.raises(TraceError, match=":5: the last line is truncated"):
        workload_by_name(trace)
    assert workload_by_name(trace, truncated_ok=True).name == "my_trace"
