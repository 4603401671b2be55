"""Intervals of metrics: against published figures and by simulation, and none where nothing can be said."""

import math

import numpy as np
import pytest

from p2pfl.learn import Z, area, bootstrap, of_mean, student, wilson
from p2pfl.learn.metrics import BUILT_IN


def test_wilson_is_that_of_newcombe_1998():
    """Table I of Statistics in Medicine 17:857, method 3: 81 of 263, 15 of 148, 0 of 20, 1 of 29."""
    for hits, rows, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611)):
        assert wilson(hits / rows, rows) == pytest.approx((low, high), abs=5e-5)
    assert wilson(1 / 29, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)


def test_the_quantile_of_student_is_scipys():
    stats = pytest.importorskip("scipy.stats", reason="an extra")
    for freedom in (1, 2, 3, 4, 5, 10, 30, 1000):
        assert student(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=2e-3)


def test_the_interval_of_an_area_solves_the_equation_of_hanley_and_mcneil_at_its_ends():
    """Newcombe 2006, method 5: an end is where the estimate is 1.96 standard errors away, by the variance there."""
    for theta, first, second in ((0.8, 20, 30), (0.5, 7, 7), (0.95, 5, 9)):
        for end in area(theta, first, second):
            spare = (first + second) / 2 - 1
            factor = 1 + spare * ((1 - end) / (2 - end) + end / (1 + end))
            error = math.sqrt(end * (1 - end) * factor / (first * second))
            assert abs(theta - end) == pytest.approx(Z * error, abs=1e-6)


def test_a_perfect_area_of_few_rows_is_far_from_certain():
    low, high = area(1.0, 7, 7)
    assert high == 1.0
    assert 0.6 < low < 0.85


def drawn(rng, rows, classes):
    labels = rng.integers(classes, size=rows)
    return rng.normal(size=(rows, classes)) + 1.2 * (labels[:, None] == np.arange(classes)), labels


SHARES = ("accuracy", "balanced_accuracy", "auc", "average_precision", "f1")
TWO = (*SHARES, "log_loss", "brier")


@pytest.mark.long
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", TWO)
def test_intervals_of_classes_hold_the_truth_about_as_often_as_they_say(name, classes):
    """Of 300 tables with 40 rows each; what is exactly right has 95%, and a bound that is too wide has more."""
    rng = np.random.default_rng(3)
    metric = BUILT_IN[name]
    truth, held = metric(*drawn(rng, 20_000, classes)), 0
    for _ in range(300):
        low, high = metric.interval(*drawn(rng, 40, classes))
        held += low <= truth <= high
    assert held >= 273, held


@pytest.mark.parametrize("name", ["mae", "rmse", "r2"])
def test_intervals_of_numbers_hold_the_truth_about_as_often_as_they_say(name):
    rng, metric = np.random.default_rng(4), BUILT_IN[name]

    def numbers(rows):
        targets = rng.normal(size=(rows, 1))
        return targets + 0.5 * rng.normal(size=(rows, 1)), targets

    truth = metric(*numbers(200_000))
    held = sum(low <= truth <= high for low, high in (metric.interval(*numbers(60)) for _ in range(300)))
    assert held >= 273, held


@pytest.mark.parametrize("name", BUILT_IN)
def test_an_interval_has_its_metric_in_it_or_there_is_none(name):
    metric, rng = BUILT_IN[name], np.random.default_rng(5)
    for rows in (1, 2, 14, 200):
        sample = drawn(rng, rows, 2) if name not in ("mae", "rmse", "r2") else (rng.normal(size=(rows, 1)),) * 2
        value, found = metric(*sample), metric.interval(*sample)
        assert found is None or found[0] <= value <= found[1]
        if found is not None and name in SHARES:
            assert 0.0 <= found[0] <= found[1] <= 1.0


def test_what_is_not_defined_has_no_interval():
    logits = np.array([[0.0, 1.0], [1.0, 0.0]])
    assert BUILT_IN["auc"].interval(logits, np.array([1, 1])) is None
    assert BUILT_IN["accuracy"].interval(np.full((2, 2), np.nan), np.array([0, 1])) is None
    assert BUILT_IN["log_loss"].interval(logits[:1], np.array([1])) is None, "one row does not vary"
    assert BUILT_IN["accuracy"].interval(np.zeros((4, 2, 9)), np.zeros((4, 9), int)) is None, "pixels of a row"


def test_a_metric_of_your_own_is_resampled_and_the_same_each_time():
    rng = np.random.default_rng(6)
    outputs, targets = rng.normal(size=(50, 1)), rng.normal(size=(50, 1))
    cost = bootstrap(lambda o, t: float(np.abs(o - t).mean()))
    assert cost(outputs, targets) == cost(outputs, targets)
    assert cost(outputs, targets) == pytest.approx(BUILT_IN["mae"].interval(outputs, targets), abs=0.1)
    assert bootstrap(lambda _, __: math.nan)(outputs, targets) is None
    assert cost(outputs[:2], targets[:2]) is not None
    assert cost(outputs[:1], targets[:1]) is None, "one row does not vary"


def test_the_mean_of_nodes_has_the_mean_of_their_ends_at_most():
    assert of_mean([(0.8, (0.7, 0.9)), (0.6, (0.4, 0.7))]) == pytest.approx((0.55, 0.8))
    low, high = of_mean([(0.8, (0.7, 0.9))] * 4, independent=True)
    assert (low, high) == pytest.approx((0.75, 0.85))
    assert of_mean([(0.8, (0.7, 0.9)), (0.8, None)]) is None
