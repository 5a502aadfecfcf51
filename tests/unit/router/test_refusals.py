"""A document that is not a usable table is refused with the field and the reason, and nothing else happens."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolphin_router.contract import DocumentError, RoutingTable, read_table, write_table

Document = dict[str, Any]
Step = str | int

REMOVED = object()
FIRST = ("decider", "clusters", 0)
CHOLESKY = ("decider", "clusters", 2, "precision_cholesky")
OUTPUT = ("output_model",)

# Where, what is put there, the field that the message names (None: the same), and words of the reason.
SPOILT: list[tuple[tuple[Step, ...], Any, str | None, str]] = [
    (("format",), "dolphinrouting.dev/table/v2", None, "this release reads 'dolphinrouting.dev/table/v1'"),
    (("format",), REMOVED, None, "is missing"),
    (("extra",), 1, None, "is not a field of this format"),
    (("two\nlines",), 1, "'two\\nlines'", "is not a field of this format"),
    (("routing_policy",), REMOVED, None, "is missing"),
    (("routing_policy", "name"), "", None, "at least 1 character"),
    (("routing_policy", "name"), "\x1b[2J", None, "pattern"),
    (("routing_policy", "generation"), 1.5, None, "integer"),
    (("split", "prefill"), 0, None, "greater than or equal to 1"),
    (("split", "decode"), 1025, None, "less than or equal to 1024"),
    (("split", "decode"), True, None, "integer"),
    (("slo", "kind"), "median", None, "this release reads 'both' or 'end-to-end'"),
    (("slo", "tpot_ms"), -1, None, "greater than or equal to 0"),
    (("slo", "ttft_ms"), "8000", None, "number"),
    (("features", 1), "output_tokens", None, "prefill_effective_tokens"),
    (("features",), ["prompt_tokens"], "features[1]", "is missing"),
    (("decider", "kind"), "prices", None, "'prices', but this release reads 'bits'"),
    (("decider", "kind"), REMOVED, None, "is missing"),
    (("decider", "transform"), REMOVED, None, "is missing"),
    (("decider", "transform", "scale", 2), -0.5, None, "greater than 0"),
    (("decider", "transform", "scale", 0), 0, None, "greater than 0"),
    (("decider", "transform", "mean", 1), float("inf"), None, "finite"),
    (("decider", "clustering"), {"kind": "dbscan"}, None, "this release reads 'kmeans', 'gaussian-mixture'"),
    (("decider", "clustering"), {"kind": "kmeans"}, "decider.clusters[0].weight", "must be null"),
    (("decider", "clustering", "covariance"), "round", None, "'full', 'tied', 'diag' or 'spherical'"),
    (("decider", "clustering", "covariance"), REMOVED, None, "is missing"),
    (("decider", "clusters"), [], None, "at least 1 item"),
    (("decider", "clusters"), REMOVED, None, "is missing"),
    (("decider", "clusters"), None, None, "array"),
    (("decider", "clusters", 3), REMOVED, "decider.clusters", "shares that add up to 0.75"),
    ((*FIRST, "centre"), REMOVED, None, "is missing"),
    ((*FIRST, "centre", 2), float("nan"), None, "finite"),
    ((*FIRST, "centre", 3), float("-inf"), None, "finite"),
    ((*FIRST, "centre", 3), 1e300, None, "beyond any token count"),
    ((*FIRST, "centre", 3), REMOVED, None, "is missing"),
    ((*FIRST, "centre", 4), 0.5, "decider.clusters[0].centre", "at most 4 items"),
    (("decider", "clusters", 1, "centre"), [-1.0, 0.0, 0.0, 0.125], None, "is the same as clusters[0].centre"),
    ((*FIRST, "action"), "both", None, "'local' or 'remote'"),
    ((*FIRST, "share"), 1.5, None, "less than or equal to 1"),
    ((*FIRST, "share"), 0.3, "decider.clusters", "shares that add up to 1.05"),
    ((*FIRST, "samples"), -1, None, "greater than or equal to 0"),
    ((*FIRST, "samples"), 2**53, None, "less than or equal to"),
    ((*FIRST, "rewards"), {}, "decider.clusters[0].rewards.local", "is missing"),
    ((*FIRST, "rewards", "local", "periods"), 0, None, "greater than or equal to 1"),
    ((*FIRST, "rewards", "local", "standard_error"), -0.1, None, "greater than or equal to 0"),
    ((*FIRST, "weight"), None, None, "a Gaussian mixture needs it"),
    ((*FIRST, "weight"), 0, None, "greater than 0"),
    ((*FIRST, "weight"), 0.5, "decider.clusters", "weights that add up to 1.25"),
    (CHOLESKY, None, None, "a Gaussian mixture needs it"),
    ((*CHOLESKY, 2, 1), 0.5, None, "below the diagonal must be 0"),
    ((*CHOLESKY, 3, 3), 0, None, "the diagonal must be above 0"),
    ((*CHOLESKY, 3), REMOVED, None, "is missing"),
    ((*OUTPUT, "inputs", 0), "prompt", "output_model.inputs", "must be exactly log1p_prompt_tokens"),
    ((*OUTPUT, "classes"), [], None, "at least 1 item"),
    ((*OUTPUT, "classes", 0, "name"), "long", "output_model.classes[1].name", "out of order"),
    ((*OUTPUT, "classes", 0, "name"), "tiny", None, "'short', 'medium' or 'long'"),
    ((*OUTPUT, "classes", 0, "upper_bound_tokens"), None, None, "must be null for the last class and for no other"),
    ((*OUTPUT, "classes", 2, "upper_bound_tokens"), 9000, None, "must be null for the last class and for no other"),
    ((*OUTPUT, "classes", 1, "upper_bound_tokens"), 64, None, "above the previous class's"),
    ((*OUTPUT, "classes", 1, "representative_tokens"), 600, None, "outside its class"),
    ((*OUTPUT, "weights", 0), REMOVED, "output_model.weights", "has 2 entries, but there are 3 classes"),
    ((*OUTPUT, "intercepts", 0), REMOVED, "output_model.intercepts", "has 2 entries, but there are 3 classes"),
    ((*OUTPUT, "mean", 0), REMOVED, "output_model.mean", "at least 14 items"),
    ((*OUTPUT, "scale", 5), 0, None, "greater than 0"),
    ((*OUTPUT, "accuracy"), 1.01, None, "less than or equal to 1"),
    (("provenance", "seed"), -1, None, "greater than or equal to 0"),
    (("provenance", "period_s"), 0, None, "greater than 0"),
    (("provenance", "scores", "learned", "attainment"), 2, None, "less than or equal to 1"),
    (("provenance", "scores", "learned", "interval"), [0.9, 0.8], None, "in the wrong order"),
    (("created_at",), "yesterday", None, "RFC 3339"),
    (("created_at",), "2026-01-31T12:00:00", None, "RFC 3339"),
    (("created_at",), "2026-01-31", None, "RFC 3339"),
    (("digest",), "sha256:" + "0" * 64, None, "does not fit the content"),
    (("digest",), "md5:00", None, "pattern"),
    (("digest",), REMOVED, None, "is missing"),
    (("provenance", "seed"), 8, "digest", "does not fit the content"),
]


def _spoil(document: Document, place: tuple[Step, ...], value: Any) -> None:
    part: Any = document
    for step in place[:-1]:
        part = part[step]
    if value is REMOVED:
        del part[place[-1]]
    elif isinstance(part, list) and place[-1] == len(part):
        part.append(value)
    else:
        part[place[-1]] = value


def _path(place: tuple[Step, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).removeprefix(".")


@pytest.mark.parametrize(
    ("place", "value", "field", "reason"),
    SPOILT,
    ids=[f"{_path(place)}={'removed' if value is REMOVED else value!r}"[:70] for place, value, _, _ in SPOILT],
)
def test_a_malformed_document_is_refused_with_the_field_named(
    place: tuple[Step, ...],
    value: Any,
    field: str | None,
    reason: str,
    build_document: Callable[..., Document],
) -> None:
    document = build_document(mixture=True)
    _spoil(document, place, value)
    with pytest.raises(DocumentError) as refused:
        read_table(json.dumps(document), source="spoilt.json")
    assert refused.value.source == "spoilt.json"
    assert refused.value.field == (_path(place) if field is None else field)
    assert reason in refused.value.problem
    assert refused.value.remedy
    message = str(refused.value)
    assert message.startswith("spoilt.json: ")
    assert refused.value.field in message
    assert "\n" not in message


def test_mixture_parts_do_not_belong_into_kmeans(build_document: Callable[..., Document]) -> None:
    document = build_document(mixture=False)
    document["decider"]["clusters"][1]["precision_cholesky"] = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    with pytest.raises(DocumentError, match=r"decider\.clusters\[1\]\.precision_cholesky must be null"):
        read_table(json.dumps(document), source="table")


def test_a_document_of_another_version_is_refused_for_its_version(build_document: Callable[..., Document]) -> None:
    document = {**build_document(), "format": "dolphinrouting.dev/table/v2", "new": 1, "decider": {"kind": "prices"}}
    with pytest.raises(DocumentError, match=r"format is 'dolphinrouting\.dev/table/v2'"):
        read_table(json.dumps(document), source="table")


def test_a_policy_class_of_the_future_is_refused_for_its_kind(build_document: Callable[..., Document]) -> None:
    document = {**build_document(), "decider": {"kind": "thresholds", "prices": [1.0]}}
    with pytest.raises(DocumentError, match=r"decider\.kind is 'thresholds', but this release reads 'bits'"):
        read_table(json.dumps(document), source="table")


@pytest.mark.parametrize("size", [0, 65])
def test_the_number_of_clusters_is_limited(size: int, build_document: Callable[..., Document]) -> None:
    document = build_document(clusters=2)
    cluster = document["decider"]["clusters"][0]
    document["decider"]["clusters"] = [{**cluster, "centre": [index / 64, 0, 0, 0]} for index in range(size)]
    with pytest.raises(DocumentError, match=r"decider\.clusters should have at (most 64|least 1) item"):
        read_table(json.dumps(document), source="table")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is not JSON"),
        ("", "is not JSON"),
        (b"routing table", "is not JSON"),
        (b'{"format": "dolphin', "is not JSON"),
        (b"\xff\xfe{}", "is not UTF-8"),
        ("\ud800", "is not UTF-8"),
        (b"[1]", "is not a JSON object"),
        (b"null", "is not a JSON object"),
        (b"NaN", "is not a JSON object"),
        (b"[" * 1_000_000, "is not JSON"),
        (b'{"a":' * 200_000, "is not JSON"),
        (b"9" * 1_000_000, "is not JSON"),
    ],
    ids=lambda value: repr(value[:12]),
)
def test_what_is_no_document_is_refused(data: bytes | str, problem: str) -> None:
    with pytest.raises(DocumentError) as refused:
        read_table(data, source="table")
    assert refused.value.problem.startswith(problem)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("data", [b"\x00\xff" * 5_000_000, b"[" * 10_000_000, "x" * 10_000_000, "é" * 600_000])
def test_ten_megabytes_of_nonsense_are_refused_at_once(data: bytes | str) -> None:
    start = time.perf_counter()
    with pytest.raises(DocumentError, match="is longer than 1048576 bytes"):
        read_table(data, source="table")
    assert time.perf_counter() - start < 1.0


@pytest.mark.parametrize(
    ("original", "repeated", "field"),
    [
        ('"seed":', '"seed":7,"seed":', "provenance.seed"),
        ('"created_at":', '"created_at":"x","created_at":', "created_at"),
        ('"samples":102,', '"samples":102,"samples":102,', "decider.clusters[2].samples"),
    ],
)
def test_a_key_that_is_there_twice_is_refused(
    original: str, repeated: str, field: str, build_table: Callable[..., RoutingTable]
) -> None:
    text = write_table(build_table()).decode()
    assert text.count(original) == 1
    with pytest.raises(DocumentError, match="is there twice") as refused:
        read_table(text.replace(original, repeated), source="table")
    assert refused.value.field == field


@given(data=st.data())
@settings(deadline=None, max_examples=300)
def test_corrupted_bytes_are_read_or_refused(data: st.DataObject, build_table: Callable[..., RoutingTable]) -> None:
    corrupted = bytearray(write_table(build_table(mixture=True)))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(corrupted)))
        stop = start + data.draw(st.integers(0, 8))
        corrupted[start:stop] = data.draw(st.binary(max_size=8) | st.sampled_from([b"NaN", b"1e999", b"{", b'"', b"-"]))
    _read_or_refused(bytes(corrupted))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(st.text(max_size=4), parts, max_size=4),
    max_leaves=6,
)


@given(data=st.data(), value=json_values)
@settings(deadline=None, max_examples=300)
def test_any_value_at_any_place_is_read_or_refused(
    data: st.DataObject, value: Any, build_document: Callable[..., Document]
) -> None:
    document = build_document(mixture=True, clusters=2)
    part: Any = document
    while True:
        step = data.draw(st.sampled_from(range(len(part)) if isinstance(part, list) else sorted(part)))
        if not isinstance(part[step], list | dict) or not part[step] or data.draw(st.booleans()):
            break
        part = part[step]
    part[step] = value
    _read_or_refused(json.dumps(document).encode())


@given(st.binary())
@settings(deadline=None)
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(DocumentError):
        read_table(data, source="table")


def _read_or_refused(data: bytes) -> None:
    """Any error but a refusal fails the test."""
    with contextlib.suppress(DocumentError):
        table = read_table(data, source="table")
        assert read_table(write_table(table), source="written") == table
