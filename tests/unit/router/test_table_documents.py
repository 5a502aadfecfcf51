"""Tables survive writing and reading; equal tables have equal bytes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolphin_router.contract import (
    DocumentError,
    RoutingTable,
    content_digest,
    load_table,
    read_table,
    save_table,
    seal,
    write_table,
)

Document = dict[str, Any]

finite = st.floats(allow_nan=False, allow_infinity=False)
coordinates = st.floats(min_value=-4.0, max_value=4.0)


@st.composite
def deciders(draw: st.DrawFn) -> Document:
    """Any valid k-means decider."""
    centres = draw(st.lists(st.tuples(*[coordinates] * 4), min_size=1, max_size=64, unique=True))
    reward = st.fixed_dictionaries(
        {
            "mean": finite,
            "standard_error": st.none() | st.floats(min_value=0, allow_infinity=False),
            "periods": st.integers(1, 2**53 - 1),
        }
    )
    clusters = [
        {
            "centre": list(centre),
            "action": draw(st.sampled_from(["local", "remote"])),
            "share": 1.0 / len(centres),
            "samples": draw(st.integers(0, 2**53 - 1)),
            "rewards": {"local": draw(st.none() | reward), "remote": draw(st.none() | reward)},
            "weight": None,
            "precision_cholesky": None,
        }
        for centre in centres
    ]
    return {
        "kind": "bits",
        "transform": {"mean": [5.0, 6.0, 7.0, 8.0], "scale": [draw(st.floats(min_value=1e-3, max_value=4)), 1, 2, 3]},
        "clustering": {"kind": "kmeans"},
        "clusters": clusters,
    }


@given(decider=deciders(), workload=st.text(min_size=1).filter(str.isprintable))
@settings(deadline=None, max_examples=60)
def test_reading_gives_what_was_written(
    decider: Document, workload: str, build_table: Callable[..., RoutingTable]
) -> None:
    provenance = build_table().provenance.model_dump(mode="json")
    table = build_table(decider=decider, provenance={**provenance, "workload": workload})
    data = write_table(table)
    assert read_table(data, source="written") == table
    assert read_table(data.decode(), source="written") == table
    assert write_table(read_table(data, source="written")) == data


@given(seed=st.integers(), mixture=st.booleans())
@settings(deadline=None, max_examples=30)
def test_the_order_of_keys_and_the_white_space_leave_no_trace(
    seed: int, mixture: bool, build_table: Callable[..., RoutingTable]
) -> None:
    table = build_table(mixture=mixture)
    shuffled = _shuffled(table.model_dump(mode="json"), random.Random(seed))
    assert write_table(read_table(json.dumps(shuffled, indent=3), source="shuffled")) == write_table(table)


def _shuffled(value: Any, generator: random.Random) -> Any:
    if isinstance(value, dict):
        keys = list(value)
        generator.shuffle(keys)
        return {key: _shuffled(value[key], generator) for key in keys}
    return [_shuffled(part, generator) for part in value] if isinstance(value, list) else value


def test_time_and_release_are_outside_the_digest(build_table: Callable[..., RoutingTable]) -> None:
    first = build_table(created_at="2026-01-31T12:00:00Z", software_version="0.1.0")
    second = build_table(created_at="2027-06-01T08:30:00.5+02:00", software_version="9.9.9")
    assert first.digest == second.digest


@pytest.mark.parametrize("field", ["split", "slo", "routing_policy", "output_model", "provenance", "decider"])
def test_everything_else_is_inside_the_digest(field: str, build_table: Callable[..., RoutingTable]) -> None:
    table = build_table()
    changes: Document = {
        "split": {"prefill": 3, "decode": 1},
        "slo": {"kind": "end-to-end", "ttft_ms": 8000, "ttft_us_per_prompt_token": 0, "tpot_ms": 20},
        "routing_policy": None,
        "output_model": None,
        "provenance": {**table.provenance.model_dump(mode="json"), "seed": 8},
        "decider": build_table(clusters=5).decider.model_dump(mode="json"),
    }
    assert build_table(**{field: changes[field]}).digest != table.digest


def test_the_digest_is_that_of_the_published_method(build_table: Callable[..., RoutingTable]) -> None:
    # A digest that changes from release to release would make every stored table unreadable.
    import hashlib

    import rfc8785

    document = build_table().model_dump(mode="json")
    digest = document.pop("digest")
    del document["created_at"], document["software_version"]
    assert digest == f"sha256:{hashlib.sha256(rfc8785.dumps(document)).hexdigest()}"


def test_sealing_again_gives_the_digest_of_the_new_content(build_table: Callable[..., RoutingTable]) -> None:
    table = build_table()
    changed = table.model_copy(update={"routing_policy": None})
    assert seal(changed).digest == content_digest(changed) != table.digest
    assert seal(table) == table


def test_whole_numbers_stay_whole(build_table: Callable[..., RoutingTable]) -> None:
    table = read_table(write_table(build_table()), source="written")
    assert isinstance(table.provenance.seed, int)
    assert isinstance(table.slo.ttft_ms, float)
    assert b'"seed":7,' in write_table(table)


def test_a_saved_table_loads(tmp_path: Path, build_table: Callable[..., RoutingTable]) -> None:
    table = build_table(mixture=True)
    path = tmp_path / "table.json"
    path.write_text("an older table")
    save_table(path, table)
    assert load_table(path) == load_table(str(path)) == table
    assert path.read_bytes().endswith(b"}\n")
    assert list(tmp_path.iterdir()) == [path]


def test_a_save_that_fails_leaves_nothing_behind(tmp_path: Path, build_table: Callable[..., RoutingTable]) -> None:
    target = tmp_path / "taken"
    target.mkdir()
    with pytest.raises(OSError, match="taken"):
        save_table(target, build_table())
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"absent\.json: cannot be read: No such file or directory; check the path"):
        load_table(tmp_path / "absent.json")
    with pytest.raises(DocumentError, match="cannot be read: Is a directory"):
        load_table(tmp_path)
    with pytest.raises(DocumentError, match="cannot be read: embedded null byte"):
        load_table("a\0b")
