"""`sim.adapt`: a simulated federation is a scikit-learn estimator."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="the extra sklearn has it")

from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, make_regression
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.model_selection import cross_val_score
from sklearn.neural_network import MLPRegressor
from sklearn.preprocessing import scale
from sklearn.utils.estimator_checks import check_estimator

from sim.adapt import FederatedClassifier, FederatedRegressor

X, Y = load_breast_cancer(return_X_y=True)
X = scale(X)
FEW = {"rounds": 2, "nodes": 3, "random_state": 1}
FAIL = dict[str, str]()
"""Checks that fail, each with the reason."""


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "made",
    [FederatedClassifier(nodes=2, rounds=4), FederatedRegressor(nodes=2, rounds=8)],
    ids=["classifier", "regressor"],
)
def test_it_passes_the_checks_of_scikit_learn(made):
    check_estimator(made, expected_failed_checks=FAIL)


def test_the_same_number_gives_the_same_bits_and_another_gives_others():
    made = FederatedClassifier(**FEW).fit(X, Y)
    again, other = clone(made).fit(X, Y), clone(made).set_params(random_state=2).fit(X, Y)
    np.testing.assert_array_equal(made.estimator_.coef_, again.estimator_.coef_)
    assert made.report_.digest == again.report_.digest
    assert (made.estimator_.coef_ != other.estimator_.coef_).any()
    mean = np.mean([one.coef_ for one in made.estimators_], axis=0)
    np.testing.assert_allclose(made.estimator_.coef_, mean, atol=1e-6)


def test_cross_val_score_compares_a_federation_with_a_center():
    center = SGDClassifier(loss="log_loss", random_state=0)
    sites = FederatedClassifier(center, nodes=3, rounds=4, partition="dirichlet:0.5", random_state=0)
    central, federated = (cross_val_score(one, X, Y, cv=2).mean() for one in (center, sites))
    assert central > 0.93
    assert federated > central - 0.04


def test_a_network_of_layers_learns_numbers_under_a_rule_in_a_world():
    x, y = make_regression(120, 3, random_state=0)
    net = MLPRegressor(hidden_layer_sizes=(8,), learning_rate_init=0.02)
    how = {"settings": {"rule": "trimmed-mean:b=1", "local_steps": 10}, "world": {"speed": "uniform:1,2"}}
    made = FederatedRegressor(net, rounds=15, random_state=0, **how).fit(x, scale(y))
    assert made.score(x, scale(y)) > 0.6


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (FederatedClassifier(LogisticRegression(), **FEW), "has no partial_fit"),
        (FederatedRegressor(SGDClassifier(), **FEW), "SGDClassifier does not fit FederatedRegressor"),
        (FederatedClassifier(**FEW, topology="no"), "^topology: "),
        (FederatedClassifier(**FEW, settings={"no": 1}), "no: unknown"),
        (FederatedClassifier(**FEW, world={"loss": 2}), "loss: impossible value"),
        (FederatedClassifier(**FEW, partition="no"), r"^partition: no such partition \(found 'no'\)"),
    ],
)
def test_a_mistake_is_a_value_error_of_one_line(made, said):
    with pytest.raises(ValueError, match=said) as caught:
        made.fit(X, Y)
    assert "\n" not in str(caught.value)
