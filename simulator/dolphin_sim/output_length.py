"""The table's output-length model over many requests at once.

Row by row it equals :mod:`dolphin_router.output_length`.
"""

from __future__ import annotations

import numpy as np

from dolphin_router.contract import PROMPT_BUCKETS, OutputModel
from dolphin_sim.engine.state import Floats, Ints
from dolphin_sim.workloads.requests import Requests


def output_inputs(requests: Requests) -> Floats:
    """Return what the model may know of each request: n rows, columns as in ``contract.INPUT_NAMES``."""
    has_system_prompt = requests.system_hash > 0
    buckets = np.zeros((len(requests), PROMPT_BUCKETS))
    rows = np.flatnonzero(has_system_prompt)
    buckets[rows, requests.system_hash[rows] % PROMPT_BUCKETS] = 1.0
    columns = (
        np.log1p(requests.prompt_tokens),
        np.log1p(requests.max_tokens),
        (requests.max_tokens > 0).astype(np.float64),
        np.log1p(requests.turns),
        requests.tools.astype(np.float64),
        requests.json_format.astype(np.float64),
    )
    return np.column_stack([*columns, buckets])


def predicted_classes(model: OutputModel, requests: Requests) -> Ints:
    """Return the index of each request's likeliest class."""
    standardised = (output_inputs(requests) - np.array(model.mean)) / np.array(model.scale)
    scores = standardised @ np.array(model.weights).T + np.array(model.intercepts)
    classes: Ints = np.argmax(scores, axis=1)
    return classes


def predicted_output_tokens(model: OutputModel, requests: Requests) -> Floats:
    """Return the representative length of each request's likeliest class."""
    representatives = np.array([entry.representative_tokens for entry in model.classes], dtype=np.float64)
    return representatives[predicted_classes(model, requests)]
