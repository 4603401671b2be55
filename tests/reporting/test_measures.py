"""What a task is measured by is found in lines, points and reports alike, and its worst node is at the right end."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from p2pfl.learn import ACCURACY, LOSS, Measure, Score
from p2pfl.reporting import (
    NodeReport,
    Point,
    Report,
    Statistic,
    measures_in,
    measures_of,
    merit,
    metrics_in,
    shown,
    spreads,
    value_of,
    worst,
)
from p2pfl.reporting.measures import in_words

AUC, RMSE = Measure("auc", "AUC", higher_is_better=True), Measure("rmse", "RMSE", higher_is_better=False)
SPREAD = Statistic(mean=0.5, min=0.25, max=0.75)


def test_the_first_who_knows_says_what_is_measured():
    told = Report(nodes=[], measures=[RMSE, LOSS])
    assert measures_of([Report(nodes=[]), told]) == (RMSE, LOSS)
    assert measures_of([Point(time_s=0.0, accuracy=SPREAD)]) == (ACCURACY, LOSS)
    assert measures_of([Point(time_s=0.0, loss=SPREAD)]) == (LOSS,)
    assert measures_of([]) == (ACCURACY, LOSS)


def test_of_a_learner_that_does_not_say_the_scores_tell():
    score = Score(accuracy=None, loss=1.0, samples=3, metrics={"hits": 3.0})
    learner = SimpleNamespace()
    assert measures_in(learner, None) == []
    assert [one.name for one in measures_in(learner, score)] == ["hits", "loss"]
    assert measures_in(SimpleNamespace(measures=(AUC,)), score) == [AUC]


def test_a_table_has_the_main_measure_first_and_the_loss_last():
    many = [Measure(str(number), str(number), higher_is_better=True) for number in range(9)]
    assert [one.name for one in shown([AUC, LOSS, ACCURACY, RMSE])] == ["auc", "accuracy", "rmse", "loss"]
    assert [one.name for one in shown([*many, LOSS])] == ["0", "1", "2", "3", "loss"]
    assert [one.name for one in shown([LOSS, AUC])] == ["loss", "auc"]


def test_values_are_found_by_name_wherever_they_stand():
    node = NodeReport(name="a", accuracy=0.5, test_loss=1.5, loss=9.0, metrics={"auc": 0.7})
    assert [value_of(node, one) for one in (ACCURACY, LOSS, AUC, RMSE)] == [0.5, 1.5, 0.7, None]
    point = Point(time_s=0.0, loss=SPREAD, metrics={"rmse": SPREAD})
    assert (value_of(point, LOSS), value_of(point, RMSE)) == (SPREAD, SPREAD)


def test_the_worst_node_is_at_the_end_that_is_not_good():
    assert (worst(SPREAD, AUC), worst(SPREAD, RMSE)) == (0.25, 0.75)
    assert in_words(Point(time_s=0.0, metrics={"rmse": SPREAD}), [RMSE]) == "RMSE 0.5 (worst 0.75)"
    assert in_words(Point(time_s=0.0, metrics={"auc": SPREAD}), [AUC]) == "AUC 0.500 (worst 0.250)"
    assert in_words(Point(time_s=0.0), [AUC]) is None
    values = [0.3, None, 0.1, math.nan]
    assert sorted(values, key=lambda one: merit(one, AUC))[2:] == [0.1, 0.3]
    assert sorted(values, key=lambda one: merit(one, RMSE))[2:] == [0.3, 0.1]


def test_an_auc_that_one_node_cannot_have_leaves_the_others_theirs():
    found = [{"auc": 0.5, "rmse": 1.0}, {"auc": math.nan, "rmse": None}, {"auc": 1.0}]
    assert spreads(found, defined=True) == {
        "auc": Statistic(mean=0.75, min=0.5, max=1.0),
        "rmse": Statistic(mean=1.0, min=1.0, max=1.0),
    }
    assert not spreads(found)["auc"].is_finite, "on the common test set it is a model that diverged"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"measures": [RMSE, LOSS], "metrics": {"rmse": SPREAD}}, "RMSE 0.25 to 0.75"),
        ({"accuracy": SPREAD}, "accuracy 0.25 to 0.75"),
        ({}, "no loss"),
    ],
)
def test_a_report_names_its_main_measure(more, said):
    assert repr(Report(nodes=[], topology="ring", **more)).endswith(f"ring: {said})")


def test_what_a_set_does_not_define_is_no_figure_and_of_a_diverged_model_no_number():
    metrics = {"auc": math.nan, "brier": 0.25}
    assert metrics_in(Score(accuracy=1.0, loss=0.1, samples=3, metrics=metrics)) == {"auc": None, "brier": 0.25}
    diverged = metrics_in(Score(accuracy=0.0, loss=math.nan, samples=3, metrics=metrics))
    assert math.isnan(diverged["auc"])
