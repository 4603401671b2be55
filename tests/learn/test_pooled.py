"""Figures from sums over nodes are those of all rows together, within the bound that is said."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.learn.figures import LIMBS, WITHIN, limbs_of, pooled, predictions_of, row_sums, value_of
from p2pfl.learn.interface import Score
from p2pfl.learn.metrics import ACCURACY, BUILT_IN, LOSS, Measure, auc, classified
from p2pfl.learn.task import Task

AUC = Measure("auc", "AUC", higher_is_better=True)
SIZES = (120, 33, 7)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e150, max_value=1e150), max_size=9))
def test_limbs_add_up_to_the_exact_sum(values):
    """Numbers of 2^-203 and more have no bit below 2^-256."""
    values = [value for value in values if not value or abs(value) > 2.0**-203]
    total = sum((limbs_of(value) for value in values), np.zeros(LIMBS, np.int64))
    assert value_of(total) == math.fsum(values)


@pytest.mark.parametrize("value", [math.inf, math.nan, 2.0**512, -1e200])
def test_what_is_too_large_is_refused(value):
    with pytest.raises(ValueError, match="cannot be summed"):
        limbs_of(value)


def site(seed, rows, classes):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(classes, (rows,), generator=generator)
    outputs = 2 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    return outputs + torch.nn.functional.one_hot(targets, classes), targets


def sums_of(sites, task, main):
    """Each node adds what it finds in its own rows."""
    total = {}
    for outputs, targets in sites:
        loss = float(torch.nn.functional.cross_entropy(outputs, targets))
        metrics = {name: float(metric(outputs, targets)) for name, metric in task.metrics.items()}
        accuracy = float((outputs.argmax(1) == targets).double().mean())
        score = Score(accuracy=accuracy, loss=loss, samples=len(targets), metrics=metrics)
        own = row_sums(score, main, predictions_of(task.metrics, outputs, targets, labels=True))
        assert all(WITHIN[0] <= array.min() <= array.max() <= WITHIN[1] for array in own.values())
        total = {name: total.get(name, 0) + array for name, array in own.items()}
    return total


def task_with(*names):
    return Task(model=lambda: None, data=lambda _: None, metrics={name: BUILT_IN[name] for name in names})


def test_two_classes_give_auc_within_its_bound_and_calibration_by_parts():
    sites = [site(seed, rows, 2) for seed, rows in enumerate(SIZES)]
    found = pooled(sums_of(sites, task_with("auc"), AUC))
    outputs, targets = (torch.cat(each) for each in zip(*sites, strict=True))
    whole = classified(outputs, targets)
    assert found.rows == sum(SIZES)
    assert abs(found.area.value - auc(whole)) <= found.area.error < 0.01
    assert found.main == pytest.approx(
        sum(n * auc(classified(*one)) for n, one in zip(SIZES, sites, strict=True)) / 160
    )
    assert found.loss == pytest.approx(float(torch.nn.functional.cross_entropy(outputs, targets)))
    chances = whole.probabilities[:, 1]
    error = 0.0
    for part in found.calibration:
        inside = (part.low <= chances) & (chances < part.high)
        assert part.rows == inside.sum()
        assert part.predicted == pytest.approx(chances[inside].mean(), abs=2**-17)
        assert part.observed == pytest.approx(whole.labels[inside].mean())
        error += abs(chances[inside].sum() - whole.labels[inside].sum())
    assert found.calibration_error == pytest.approx(error / found.rows, abs=2**-17)


def test_several_classes_give_the_confusion_matrix_and_no_histograms():
    sites = [site(seed, rows, 4) for seed, rows in enumerate(SIZES)]
    found = pooled(sums_of(sites, task_with(), ACCURACY))
    outputs, targets = (torch.cat(each) for each in zip(*sites, strict=True))
    expected = np.zeros((4, 4), int)
    np.add.at(expected, (targets.numpy(), outputs.argmax(1).numpy()), 1)
    assert (found.confusion == expected).all()
    assert found.main == pytest.approx(np.trace(expected) / found.rows)
    assert (found.area, found.calibration, found.calibration_error) == (None, (), None)


def test_a_node_whose_figure_is_not_defined_is_left_out_of_its_mean_alone():
    """AUC of one class; a loss that is not finite."""
    one = (torch.zeros(5, 2), torch.ones(5, dtype=torch.int64))
    found = pooled(sums_of([site(0, 50, 2), one], task_with("auc"), AUC))
    assert found.rows == 55
    assert found.main == pytest.approx(auc(classified(*site(0, 50, 2))))
    score = Score(accuracy=None, loss=math.nan, samples=3)
    assert pooled(row_sums(score, LOSS, None)).loss is None


def test_outputs_that_are_not_finite_count_as_no_prediction():
    outputs, targets = site(0, 50, 2)
    outputs[3] = torch.nan
    found = row_sums(Score(accuracy=0.5, loss=1.0, samples=50), ACCURACY, classified(outputs, targets))
    assert not found["confusion"].any()
    assert not found["scores"].any()
    assert pooled(found).area is None


def test_a_regression_has_no_classes_even_if_its_targets_are_whole():
    targets = torch.ones(9, 1)
    assert predictions_of(task_with("rmse").metrics, torch.randn(9, 1), targets, labels=False) is None
    odds = predictions_of(task_with("brier").metrics, torch.randn(9, 1), targets, labels=False)
    assert odds.is_binary
