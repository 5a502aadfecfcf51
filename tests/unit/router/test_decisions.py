"""A policy assigns requests as scikit-learn does and takes the action of their cluster."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from dolphin_router.contract import RoutingTable
from dolphin_router.decision import Action
from dolphin_router.features import Features, effective_tokens
from dolphin_router.load import IDLE, Load
from dolphin_router.policies import policy_from_table
from dolphin_router.policies.bits import component_whitener

Array = npt.NDArray[np.float64]
TableBuilder = Callable[..., RoutingTable]

MEAN = np.array([7.0, 6.5, 6.0, 5.0])
SCALE = np.array([1.5, 1.25, 2.0, 0.75])


def _requests(generator: np.random.Generator, count: int) -> Array:
    """Requests in tokens: a mixture of three kinds."""
    kinds = generator.normal(6.0, 2.0, size=(3, 4))
    logs = kinds[generator.integers(0, 3, size=count)] + generator.normal(0.0, 0.7, size=(count, 4))
    requests: Array = np.expm1(np.clip(logs, 0.0, 14.0))
    return requests


def _standardised(requests: Array) -> Array:
    points: Array = (np.log1p(requests) - MEAN) / SCALE
    return points


def _decider(centres: Array, clustering: dict[str, str], weights: Any = None, choleskys: Any = None) -> dict[str, Any]:
    count = len(centres)
    return {
        "kind": "bits",
        "transform": {"mean": MEAN.tolist(), "scale": SCALE.tolist()},
        "clustering": clustering,
        "clusters": [
            {
                "centre": centres[index].tolist(),
                "action": "remote" if index % 3 == 1 else "local",
                "share": 1.0 / count,
                "samples": 1,
                "rewards": {"local": None, "remote": None},
                "weight": None if weights is None else float(weights[index]),
                "precision_cholesky": None if choleskys is None else choleskys[index].tolist(),
            }
            for index in range(count)
        ],
    }


def _full(model: GaussianMixture) -> Array:
    """The precisions' Cholesky factors, one upper triangular matrix for each component."""
    factors, count = model.precisions_cholesky_, model.n_components
    match model.covariance_type:
        case "full":
            expanded = factors
        case "tied":
            expanded = np.stack([factors] * count)
        case "diag":
            expanded = np.stack([np.diag(row) for row in factors])
        case _:
            expanded = np.stack([np.eye(4) * factor for factor in factors])
    return np.triu(expanded)


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 16))
@settings(deadline=None, max_examples=30)
def test_kmeans_assigns_as_scikit_learn(seed: int, count: int, build_table: TableBuilder) -> None:
    generator = np.random.default_rng(seed)
    model = KMeans(n_clusters=count, n_init=1, max_iter=5, random_state=seed).fit(
        _standardised(_requests(generator, 200))
    )
    table = build_table(decider=_decider(model.cluster_centers_, {"kind": "kmeans"}))
    _assert_decides_as(table, model, _requests(generator, 200))


@pytest.mark.parametrize("covariance", ["full", "tied", "diag", "spherical"])
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 8))
@settings(deadline=None, max_examples=15)
def test_a_mixture_assigns_as_scikit_learn(covariance: str, seed: int, count: int, build_table: TableBuilder) -> None:
    generator = np.random.default_rng(seed)
    model = GaussianMixture(count, covariance_type=covariance, max_iter=5, reg_covar=1e-3, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(_standardised(_requests(generator, 200)))
    clustering = {"kind": "gaussian-mixture", "covariance": covariance}
    table = build_table(decider=_decider(model.means_, clustering, model.weights_, _full(model)))
    _assert_decides_as(table, model, _requests(generator, 200))


def _assert_decides_as(table: RoutingTable, model: Any, requests: Array) -> None:
    policy = policy_from_table(table)
    decisions = [policy.decide(Features(*request), IDLE) for request in requests.tolist()]
    assert [decision.cluster for decision in decisions] == model.predict(_standardised(requests)).tolist()
    for decision in decisions:
        assert decision.action.text == table.decider.clusters[decision.cluster].action


def test_a_decision_says_how_far_the_centre_is(build_table: TableBuilder) -> None:
    # The first centre is at z = (-1, 0, 0, 0.125); two scales away from it in the first feature.
    at_centre = Features(*np.expm1([7.0 - 1.5, 6.5, 6.0, 5.0 + 0.125 * 0.75]).tolist())
    away = at_centre._replace(prompt_tokens=math.expm1(7.0 - 3 * 1.5))
    for table in (build_table(), build_table(mixture=True)):
        policy = policy_from_table(table)
        assert policy.decide(at_centre, IDLE).distance == pytest.approx(0.0, abs=1e-6)
        assert policy.decide(away, IDLE).distance == pytest.approx(2.0)


def test_equally_near_centres_go_to_the_first(build_table: TableBuilder) -> None:
    centres = np.array([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]])
    policy = policy_from_table(build_table(decider=_decider(centres, {"kind": "kmeans"})))
    midway = Features(*np.expm1(MEAN).tolist())
    assert policy.decide(midway, IDLE).cluster == 0


def test_bits_do_not_look_at_the_load(build_table: TableBuilder) -> None:
    policy = policy_from_table(build_table())
    request = Features(8088, 8088, 88, 400)
    assert policy.decide(request, IDLE) == policy.decide(request, Load(1e6, 1e6, 500))


def test_actions_have_names() -> None:
    assert [Action.from_text(action.text) for action in Action] == [Action.LOCAL, Action.REMOTE]
    assert (Action.LOCAL, Action.REMOTE) == (0, 1)
    with pytest.raises(ValueError, match="action 'Remote' is neither 'local' nor 'remote'"):
        Action.from_text("Remote")


def test_only_mixtures_have_whiteners(build_table: TableBuilder) -> None:
    with pytest.raises(ValueError, match="k-means clustering has no mixture parts"):
        component_whitener(build_table().decider.clusters[0])


@pytest.mark.parametrize(
    ("prompt_tokens", "cached_tokens", "expected"), [(100, 0, 100), (100, 64, 36), (100, 100, 1), (0, 0, 0)]
)
def test_an_engine_computes_at_least_the_last_token(prompt_tokens: int, cached_tokens: int, expected: int) -> None:
    assert effective_tokens(prompt_tokens, cached_tokens) == expected
