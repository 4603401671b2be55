"""`p2pfl.adapt.sklearn`: estimators learn together, and what cannot is refused in one line."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

sklearn = pytest.importorskip("sklearn", reason="the extra sklearn has it")

from sklearn.datasets import make_classification, make_regression  # noqa: E402
from sklearn.linear_model import LogisticRegression, SGDClassifier, SGDOneClassSVM, SGDRegressor  # noqa: E402
from sklearn.metrics import log_loss, roc_auc_score  # noqa: E402
from sklearn.naive_bayes import GaussianNB  # noqa: E402
from sklearn.neural_network import MLPClassifier  # noqa: E402

from p2pfl.adapt import sklearn as adapter  # noqa: E402
from p2pfl.config import TrainingConfig  # noqa: E402
from p2pfl.errors import UserError  # noqa: E402
from p2pfl.learn import (  # noqa: E402
    NodeContext,
    RoundStart,
)
from p2pfl.methods import Variate  # noqa: E402

X, Y = make_classification(200, 6, n_informative=4, n_classes=3, random_state=0)
STEADY = {"learning_rate": "constant", "eta0": 0.01}
NAMES = np.array(["a", "b", "c"])[Y]
XR, YR = make_regression(200, 6, random_state=0)


def learner(estimator, *, y=NAMES, x=X, node=0, task=None, **settings):
    def data(context):
        return (x[context.node :: context.nodes], y[context.node :: context.nodes]), (x[:50], y[:50])

    context = NodeContext(node=node, nodes=2, name=f"n{node}", seed=3, base_dir=None)
    return adapter.task(estimator, data, **(task or {})).learner(context, TrainingConfig(**settings))


def trained(made, rounds=3, **start):
    model = made.initial()
    for index in range(rounds):
        model = made.train(RoundStart(model, **start), index).vector
    return model


@pytest.mark.parametrize(
    ("estimator", "x", "y"),
    [
        (SGDClassifier(loss="log_loss", **STEADY), X, NAMES),
        (SGDClassifier(**STEADY), X, Y > 0),
        (SGDRegressor(), XR, YR),
        (MLPClassifier((5,), learning_rate_init=0.02), X, NAMES),
    ],
    ids=["labels", "two without probabilities", "numbers", "layers"],
)
def test_an_estimator_learns_from_a_start_that_all_nodes_share(estimator, x, y):
    first, other = learner(estimator, x=x, y=y), learner(estimator, x=x, y=y, node=1)
    np.testing.assert_array_equal(first.initial(), other.initial())
    assert (first.shape_digest, first.digest) == (other.shape_digest, other.digest)
    model = trained(first)
    before, after = first.evaluate(first.initial(), "test"), first.evaluate(model, "test")
    assert (after.accuracy is None) == (y is YR)
    assert after.loss < 0.5 * before.loss if y is YR else after.accuracy > before.accuracy + 0.15


def test_a_round_depends_on_its_start_and_its_number_alone():
    """So a node goes on after a restart as if it had never stopped, though estimators count rows."""
    for estimator in (SGDClassifier(), MLPClassifier((4,))):
        made = learner(estimator)
        start = RoundStart(trained(made, 1))
        expected = learner(estimator).train(start, 5).vector
        np.testing.assert_array_equal(made.train(start, 5).vector, expected)
        assert made.local_state() == {}


def test_its_loss_and_metrics_are_those_of_scikit_learn():
    how = {"metrics": ["auc"], "metric": "auc", "classes": [False, True]}
    made = learner(SGDClassifier(loss="log_loss", **STEADY), y=Y > 0, task=how)
    model = trained(made)
    fitted, score = made.task.fitted(made.state_dict(model)), made.evaluate(model, "test")
    assert score.loss == pytest.approx(log_loss(Y[:50] > 0, fitted.predict_proba(X[:50])), rel=1e-6)
    assert score.metrics["auc"] == pytest.approx(roc_auc_score(Y[:50] > 0, fitted.decision_function(X[:50])))
    assert score.accuracy == fitted.score(X[:50], Y[:50] > 0)
    assert made.measures[0].name == "auc"


def test_a_method_corrects_each_step():
    variate = Variate()
    made = learner(SGDClassifier(learning_rate="constant", eta0=0.01), y=Y > 0, local_steps=4, learning_rate=0.1)
    push = np.linspace(-1, 1, made.size, dtype=np.float32)
    plain = made.train(RoundStart(made.initial()), 0).vector
    pushed = made.train(RoundStart(made.initial(), {"correction": 0 * push}, variate), 0).vector
    np.testing.assert_allclose(pushed, plain, atol=1e-6)
    one = learner(SGDClassifier(learning_rate="constant", eta0=0.01), y=Y > 0, local_steps=1, learning_rate=0.1)
    plain = one.train(RoundStart(one.initial()), 0).vector
    pushed = one.train(RoundStart(one.initial(), {"correction": push}, variate), 0).vector
    np.testing.assert_allclose(pushed, plain - 0.1 * push, atol=1e-6)


@pytest.mark.parametrize(
    ("estimator", "how", "said"),
    [
        (LogisticRegression(), {}, "LogisticRegression: estimator: has no partial_fit"),
        (SGDOneClassSVM(), {}, "SGDOneClassSVM: estimator: finds outliers and learns no targets"),
        (GaussianNB(), {}, "GaussianNB: estimator: has no linear coefficients"),
        (SGDClassifier(average=True), {}, "SGDClassifier: average: keeps a mean of its steps"),
        (SGDClassifier, {}, "this is no estimator"),
        (SGDClassifier(class_weight="balanced"), {}, "SGDClassifier: estimator: partial_fit failed on one row"),
        (SGDClassifier(), {"momentum": 0.9}, "training.momentum: SGDClassifier has its own optimizer"),
        (SGDClassifier(), {"closing": "train"}, "training.closing: SGDClassifier has its own optimizer"),
        (
            SGDClassifier(),
            {"task": {"classes": ["a", "b"]}},
            "training set: a label is none of the classes (found 'c')",
        ),
        (SGDClassifier(), {"x": np.where(X > 2, np.nan, X)}, "training set: cannot be used: Input contains NaN"),
        (SGDClassifier(), {"y": np.zeros(200)}, "a classifier needs two labels"),
    ],
)
def test_what_does_not_fit_is_one_clear_error(estimator, how, said):
    with pytest.raises(UserError) as caught:
        learner(estimator, **how)
    assert said in str(caught.value).replace("np.str_('c')", "'c'")


def test_a_model_file_becomes_a_fitted_estimator_again(tmp_path):
    made = learner(MLPClassifier((5,)), task={"classes": ["a", "b", "c"]})
    model = trained(made, 1)
    save_file(made.state_dict(model), tmp_path / "m.safetensors")
    fitted = made.task.fitted(tmp_path / "m.safetensors")
    assert fitted.score(X[:50], NAMES[:50]) == made.evaluate(model, "test").accuracy
    with pytest.raises(UserError, match="arrays are of another estimator"):
        adapter.task(MLPClassifier((6,)), made.task.data, classes=["a", "b", "c"]).fitted(tmp_path / "m.safetensors")
    with pytest.raises(UserError, match="cannot be read"):
        made.task.fitted(tmp_path / "none")
