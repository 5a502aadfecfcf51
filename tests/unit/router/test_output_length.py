"""The length of answers is guessed as scikit-learn's classifier would."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from dolphin_router.contract import INPUT_NAMES, OutputModel, RoutingTable
from dolphin_router.output_length import OutputInputs, OutputLengthModel, system_prompt_bucket

CLASSES: list[dict[str, Any]] = [
    {"name": "short", "upper_bound_tokens": 64.0, "representative_tokens": 30.0},
    {"name": "medium", "upper_bound_tokens": 512.0, "representative_tokens": 200.0},
    {"name": "long", "upper_bound_tokens": None, "representative_tokens": 900.0},
]


def _inputs(generator: np.random.Generator) -> OutputInputs:
    return OutputInputs(
        prompt_tokens=int(generator.lognormal(6.0, 1.5)),
        max_tokens=None if generator.random() < 0.5 else int(generator.integers(1, 4096)),
        turns=int(generator.integers(1, 20)),
        has_tools=bool(generator.random() < 0.3),
        json_response=bool(generator.random() < 0.2),
        system_prompt_bucket=None if generator.random() < 0.3 else int(generator.integers(0, 8)),
    )


def _contract_model(scaler: StandardScaler, classifier: Any, count: int) -> OutputModel:
    weights, intercepts = classifier.coef_, classifier.intercept_
    if count == 2:  # scikit-learn has one row for two classes
        weights, intercepts = np.vstack([0 * weights, weights]), np.array([0.0, intercepts[0]])
    classes = [{**entry} for entry in CLASSES[:count]]
    classes[-1]["upper_bound_tokens"] = None
    return OutputModel.model_validate(
        {
            "inputs": INPUT_NAMES,
            "classes": tuple(classes),
            "mean": scaler.mean_.tolist(),
            "scale": scaler.scale_.tolist(),
            "weights": weights.tolist(),
            "intercepts": intercepts.tolist(),
            "accuracy": 0.5,
            "samples": 300,
        },
        strict=False,
    )


@given(seed=st.integers(0, 2**32 - 1), count=st.sampled_from([2, 3]))
@settings(deadline=None, max_examples=20)
def test_the_class_is_that_of_logistic_regression(seed: int, count: int) -> None:
    generator = np.random.default_rng(seed)
    rows = np.array([_inputs(generator).vector() for _ in range(300)])
    labels = np.concatenate([np.arange(count), generator.integers(0, count, size=300 - count)])
    scaler = StandardScaler().fit(rows)
    classifier = LogisticRegression(C=100.0, max_iter=1000).fit(scaler.transform(rows), labels)
    model = OutputLengthModel(_contract_model(scaler, classifier, count))
    fresh = [_inputs(generator) for _ in range(200)]
    vectors = np.array([row.vector() for row in fresh])
    assert [model.predict(row) for row in fresh] == classifier.predict(scaler.transform(vectors)).tolist()


def test_a_class_stands_for_a_length(build_table: Callable[..., RoutingTable]) -> None:
    contract = build_table().output_model
    assert contract is not None
    model = OutputLengthModel(contract)
    assert [model.representative_tokens(index) for index in range(3)] == [30.0, 200.0, 900.0]


def test_the_first_of_equally_good_classes_wins(build_table: Callable[..., RoutingTable]) -> None:
    contract = build_table().output_model
    assert contract is not None
    flat = contract.model_copy(update={"weights": ((0.0,) * len(INPUT_NAMES),) * 3, "intercepts": (0.0, 1.0, 1.0)})
    assert OutputLengthModel(flat).predict(_inputs(np.random.default_rng(0))) == 1


def test_inputs_become_numbers_in_the_order_of_their_names() -> None:
    inputs = OutputInputs(
        prompt_tokens=99, max_tokens=255, turns=3, has_tools=True, json_response=False, system_prompt_bucket=2
    )
    vector = dict(zip(INPUT_NAMES, inputs.vector(), strict=True))
    assert vector == {
        "log1p_prompt_tokens": math.log(100),
        "log1p_max_tokens": math.log(256),
        "has_max_tokens": 1.0,
        "log1p_turns": math.log(4),
        "has_tools": 1.0,
        "json_response": 0.0,
        **{f"system_prompt_bucket_{bucket}": float(bucket == 2) for bucket in range(8)},
    }


def test_what_a_request_does_not_have_is_zero() -> None:
    nothing = OutputInputs(
        prompt_tokens=0, max_tokens=None, turns=0, has_tools=False, json_response=False, system_prompt_bucket=None
    )
    assert nothing.vector() == (0.0,) * len(INPUT_NAMES)


@given(prompt=st.text(), key=st.binary(max_size=64))
def test_a_system_prompt_has_one_bucket_for_a_key(prompt: str, key: bytes) -> None:
    bucket = system_prompt_bucket(prompt, key=key)
    assert bucket in range(8)
    assert system_prompt_bucket(prompt, key=key) == bucket


def test_buckets_depend_on_the_key_and_stay_the_same_between_releases() -> None:
    prompts = [f"You are assistant {number}." for number in range(64)]
    first, second = ([system_prompt_bucket(prompt, key=key) for prompt in prompts] for key in (b"one", b"two"))
    assert first != second
    assert set(first) == set(range(8))
    # A model that was learned from other buckets would guess at random: recorded from the first release.
    assert first[:8] == [3, 0, 4, 5, 6, 5, 6, 4]


def test_bad_buckets_are_not_hidden() -> None:
    inputs = OutputInputs(1, None, 1, False, False, 8)
    with pytest.raises(IndexError):
        inputs.vector()
