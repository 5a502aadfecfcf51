"""The output-length model says the same of many requests at once as the router says of each."""

from __future__ import annotations

import numpy as np
import pytest

from dolphin_router.contract import INPUT_NAMES, PROMPT_BUCKETS, OutputClass, OutputModel
from dolphin_router.output_length import OutputInputs, OutputLengthModel
from dolphin_sim.output_length import output_inputs, predicted_output_tokens
from dolphin_sim.workloads import Requests, workload_by_name


def random_model(seed: int) -> OutputModel:
    random = np.random.default_rng(seed)
    width = len(INPUT_NAMES)
    return OutputModel(
        inputs=INPUT_NAMES,
        classes=(
            OutputClass(name="short", upper_bound_tokens=64.0, representative_tokens=30.0),
            OutputClass(name="medium", upper_bound_tokens=512.0, representative_tokens=200.0),
            OutputClass(name="long", upper_bound_tokens=None, representative_tokens=900.0),
        ),
        mean=tuple(random.normal(3.0, 2.0, width).tolist()),
        scale=tuple(random.uniform(0.5, 3.0, width).tolist()),
        weights=tuple(tuple(row) for row in random.normal(size=(3, width)).tolist()),
        intercepts=tuple(random.normal(size=3).tolist()),
        accuracy=0.8,
        samples=1000,
    )


def inputs_of(requests: Requests, row: int) -> OutputInputs:
    system_hash = int(requests.system_hash[row])
    return OutputInputs(
        prompt_tokens=int(requests.prompt_tokens[row]),
        max_tokens=int(requests.max_tokens[row]) or None,
        turns=int(requests.turns[row]),
        has_tools=bool(requests.tools[row]),
        json_response=bool(requests.json_format[row]),
        system_prompt_bucket=system_hash % PROMPT_BUCKETS if system_hash else None,
    )


@pytest.mark.parametrize("workload", ["hybrid", "chat", "agent"])
def test_every_row_equals_what_the_router_says(workload: str) -> None:
    requests = workload_by_name(workload).episode(rate_per_s=2.0, duration_s=100.0, seed=3, part="train")
    assert len(requests) > 50
    rows = [inputs_of(requests, row) for row in range(len(requests))]
    assert output_inputs(requests) == pytest.approx(np.array([row.vector() for row in rows]))
    classes_seen = set()
    for seed in range(5):
        model = random_model(seed)
        router = OutputLengthModel(model)
        expected = [router.representative_tokens(router.predict(row)) for row in rows]
        assert predicted_output_tokens(model, requests).tolist() == expected
        classes_seen.update(expected)
    assert len(classes_seen) == 3


def test_no_requests_give_no_lengths() -> None:
    empty = Requests.empty(block_tokens=64, component_names=())
    assert predicted_output_tokens(random_model(0), empty).tolist() == []
