"""The classifier that a search exports guesses in the router as scikit-learn's does here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from dolphin_router.output_length import OutputInputs, OutputLengthModel
from dolphin_search.output_length.classes import LengthClasses, learn_classes
from dolphin_search.output_length.training import TRAINING_SHARE, train_output_model
from dolphin_sim.output_length import output_inputs, predicted_classes
from dolphin_sim.workloads import Requests, workload_by_name

RECORDED = workload_by_name("chat").episode(rate_per_s=2.0, duration_s=400.0, seed=0, part="train")
CUT = int(TRAINING_SHARE * len(RECORDED))


def with_answers(*lengths: int) -> Requests:
    """The recorded requests with answers of these lengths: the longer the prompt and with a bit of luck, the longer."""
    luck = np.random.default_rng(0).normal(scale=0.5, size=len(RECORDED))
    rank = np.argsort(np.argsort(np.log1p(RECORDED.prompt_tokens) + luck))
    answers = np.array(lengths)[rank * len(lengths) // len(RECORDED)]
    return replace(RECORDED, output_tokens=answers)


def router_guesses(requests: Requests, model: OutputLengthModel) -> list[int]:
    return [
        model.predict(
            OutputInputs(
                prompt_tokens=int(requests.prompt_tokens[row]),
                max_tokens=int(requests.max_tokens[row]) or None,
                turns=int(requests.turns[row]),
                has_tools=bool(requests.tools[row]),
                json_response=bool(requests.json_format[row]),
                system_prompt_bucket=int(requests.system_hash[row] % 8) if requests.system_hash[row] else None,
            )
        )
        for row in range(len(requests))
    ]


def sklearn_guesses(requests: Requests, labels: np.ndarray) -> list[int]:
    inputs = output_inputs(requests)
    mean, scale = inputs[:CUT].mean(axis=0), inputs[:CUT].std(axis=0)
    points = (inputs - mean) / np.where(scale > 1e-9, scale, 1.0)
    fitted = LogisticRegression(max_iter=1000).fit(points[:CUT], labels[:CUT])
    guesses: list[int] = fitted.predict(points).tolist()
    return guesses


@pytest.mark.parametrize("lengths", [(50, 400), (20, 200, 2_000)], ids=["two classes", "three classes"])
def test_the_router_guesses_as_the_classifier_that_was_trained(lengths: tuple[int, ...]) -> None:
    requests = with_answers(*lengths)
    classes = learn_classes(requests.output_tokens)
    labels = classes.of(requests.output_tokens)
    assert classes.representative_tokens == lengths
    model = train_output_model(requests, classes)
    guesses = router_guesses(requests, OutputLengthModel(model))
    assert guesses == sklearn_guesses(requests, labels) == predicted_classes(model, requests).tolist()
    assert set(guesses) == set(range(len(lengths)))
    assert model.accuracy == pytest.approx(np.mean(np.array(guesses[CUT:]) == labels[CUT:]))


def test_answers_of_one_length_make_a_model_of_one_class() -> None:
    requests = with_answers(300)
    classes = learn_classes(requests.output_tokens)
    model = train_output_model(requests, classes)
    router = OutputLengthModel(model)
    assert [entry.name for entry in model.classes] == ["short"]
    assert router_guesses(requests, router) == [0] * len(requests)
    assert router.representative_tokens(0) == 300
    assert model.accuracy == 1.0


@pytest.mark.parametrize("absent", [0, 1, 2])
def test_a_class_without_examples_is_never_guessed_and_the_others_as_ever(absent: int) -> None:
    lengths = [length for number, length in enumerate((20, 200, 2_000)) if number != absent]
    requests = with_answers(*lengths)
    classes = LengthClasses((63, 632), (20, 200, 2_000))
    labels = classes.of(requests.output_tokens)
    guesses = router_guesses(requests, OutputLengthModel(train_output_model(requests, classes)))
    assert guesses == sklearn_guesses(requests, labels)
    assert set(guesses) == {0, 1, 2} - {absent}
