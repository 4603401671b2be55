"""Metrics are scikit-learn's, computed without it."""

import math
from functools import cache

import numpy as np
import pytest
import torch

from p2pfl.errors import UserError
from p2pfl.learn import Metric, Task, measured_by, named
from p2pfl.learn.metrics import BUILT_IN


@cache
def scores():
    """Not imported with this module: it takes a second."""
    return pytest.importorskip("sklearn.metrics", reason="the extra dev has scikit-learn")


def classes(count, rows=200, seed=0):
    """Logits (rows, count) with many ties, and labels, some of them right."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(count, size=rows)
    logits = rng.integers(-3, 4, size=(rows, count)) / 2 + (labels[:, None] == np.arange(count))
    return torch.tensor(logits, dtype=torch.float32), torch.tensor(labels)


def probabilities(logits):
    return torch.softmax(logits.double(), dim=1).numpy()


BINARY = {
    "accuracy": lambda y, p: scores().accuracy_score(y, p.argmax(1)),
    "balanced_accuracy": lambda y, p: scores().balanced_accuracy_score(y, p.argmax(1)),
    "auc": lambda y, p: scores().roc_auc_score(y, p[:, 1].round(12)),
    "average_precision": lambda y, p: scores().average_precision_score(y, p[:, 1].round(12)),
    "f1": lambda y, p: scores().f1_score(y, p.argmax(1)),
    "log_loss": lambda y, p: scores().log_loss(y, p),
    "brier": lambda y, p: scores().brier_score_loss(y, p[:, 1]),
}
SEVERAL = BINARY | {
    "auc": lambda y, p: scores().roc_auc_score(y, p, multi_class="ovr", average="macro"),
    "average_precision": lambda y, p: scores().average_precision_score(np.eye(4)[y], p, average="macro"),
    "f1": lambda y, p: scores().f1_score(y, p.argmax(1), average="macro"),
    "brier": lambda y, p: scores().brier_score_loss(y, p, labels=range(4)),
}
NUMBERS = {
    "mae": lambda y, p: scores().mean_absolute_error(y, p),
    "rmse": lambda y, p: scores().root_mean_squared_error(y, p),
    "r2": lambda y, p: scores().r2_score(y, p),
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("rows", [200, 5])
def test_two_classes_are_judged_as_scikit_learn_judges(name, rows):
    logits, labels = classes(2, rows)
    expected = BINARY[name](labels.numpy(), probabilities(logits))
    assert BUILT_IN[name](logits, labels) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", SEVERAL)
def test_several_classes_are_judged_as_scikit_learn_judges(name):
    rng = np.random.default_rng(1)
    labels = torch.tensor(rng.integers(4, size=300))
    logits = torch.tensor(rng.normal(size=(300, 4))) + torch.nn.functional.one_hot(labels, 4)
    expected = SEVERAL[name](labels.numpy(), probabilities(logits))
    assert BUILT_IN[name](logits, labels) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("outputs", [1, 3])
def test_regressions_are_judged_as_scikit_learn_judges(name, outputs):
    rng = np.random.default_rng(2)
    wanted = rng.normal(size=(50, outputs)).astype(np.float32) * 10
    found = wanted + rng.normal(size=(50, outputs)).astype(np.float32)
    expected = NUMBERS[name](wanted.astype(np.float64), found.astype(np.float64))
    assert BUILT_IN[name](torch.tensor(found), torch.tensor(wanted)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", BINARY)
def test_one_column_of_logits_is_the_odds_of_class_one(name):
    logits, labels = classes(2)
    odds = logits[:, 1:] - logits[:, :1]
    assert BUILT_IN[name](odds, labels) == pytest.approx(BUILT_IN[name](logits, labels), abs=1e-12)


def test_what_a_set_does_not_define_is_nan():
    logits, labels = classes(2)
    ones = torch.ones_like(labels)
    assert math.isnan(BUILT_IN["auc"](logits, ones))
    assert math.isnan(BUILT_IN["average_precision"](logits, 0 * ones))
    assert math.isnan(BUILT_IN["r2"](logits[:, :1], ones.float()))
    broken = torch.full_like(logits, math.inf)
    assert all(math.isnan(BUILT_IN[name](broken, labels)) for name in BINARY)
    assert math.isnan(BUILT_IN["mae"](broken[:, :1], labels.float()))


def test_a_class_that_no_row_has_is_left_out_of_a_mean():
    logits, labels = torch.tensor(np.random.default_rng(3).normal(size=(90, 3))), torch.arange(90) % 3
    without = labels.clamp(max=1)
    each = [scores().roc_auc_score(without == place, probabilities(logits)[:, place]) for place in (0, 1)]
    assert BUILT_IN["auc"](logits, without) == pytest.approx(np.mean(each), abs=1e-12)


@pytest.mark.parametrize("targets", [torch.tensor([0, 2]), torch.tensor([0.5, 1.0]), torch.tensor([0])])
def test_what_is_no_label_of_the_outputs_is_refused(targets):
    with pytest.raises(ValueError, match="one label from 0 to 1"):
        BUILT_IN["accuracy"](torch.zeros(2, 2), targets)


def test_an_unknown_name_is_the_users_mistake():
    assert list(named(["auc", "f1"])) == ["auc", "f1"]
    with pytest.raises(UserError) as caught:
        named(["auc", "auroc"])
    assert caught.value.key == "task.metrics"
    assert "average_precision" in caught.value.allowed


def test_a_task_takes_the_names_of_built_in_metrics():
    make = {"model": torch.nn.Identity, "data": print}
    assert Task(**make, metrics=["auc", "f1"], metric="f1").metrics == named(["auc", "f1"])
    assert Task(**make, metrics="auc").metrics == named(["auc"])
    for wrong in (["auroc"], [None], 3, [["auc"]]):
        with pytest.raises(UserError, match=r"metrics: no such metric"):
            Task(**make, metrics=wrong)


def test_the_main_measure_is_the_tasks_own():
    def by_hand(outputs, targets):
        return 0.0

    own = {"by_hand": by_hand, **named(["rmse"])}
    assert [one.name for one in measured_by(own, None, labels=True)] == ["accuracy", "by_hand", "rmse", "loss"]
    assert [one.name for one in measured_by(own, None, labels=False)] == ["by_hand", "rmse", "loss"]
    assert [one.name for one in measured_by({}, None, labels=False)] == ["loss"]
    first = measured_by(own, "rmse", labels=True)[0]
    assert (first.name, first.label, first.higher_is_better) == ("rmse", "RMSE", False)
    assert measured_by(own, None, labels=False)[0].higher_is_better


def test_a_main_metric_must_be_one_of_the_tasks():
    own = {"cost": Metric(compute=torch.dist, higher_is_better=False, label="cost")}
    make = {"model": torch.nn.Identity, "data": print}
    for name in ("cost", "loss", "accuracy", None):
        assert Task(**make, metrics=own, metric=name).metric == name
    with pytest.raises(UserError) as caught:
        Task(**make, metrics=own, metric="costs")
    assert caught.value.allowed == "cost, accuracy, loss"
