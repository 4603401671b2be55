"""The figure that must improve, as the core wants it: lower is better."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from p2pfl.config import TrainingConfig
from p2pfl.errors import UserError
from p2pfl.learn import Score, gauge_of

SCORE = Score(accuracy=0.75, loss=0.5, samples=4, metrics={"auc": 0.9, "mae": 2.0})
METRICS = {"auc": len, "mae": SimpleNamespace(higher_is_better=False)}
"""A bare function of the user's counts as higher is better."""


class Learner:
    task = SimpleNamespace(metrics=METRICS)

    def __init__(self, score=SCORE):
        self.score = score

    def initial(self):
        return None

    def evaluate(self, _vector, part):
        return self.score if part == "test" else None


def gauge(of, learner=None):
    return gauge_of(TrainingConfig(stop=f"no improvement of {of} in 3 rounds"), learner or Learner())


@pytest.mark.parametrize(
    ("of", "figure"), [("loss", 7.0), ("test_loss", 0.5), ("accuracy", -0.75), ("auc", -0.9), ("mae", 2.0)]
)
def test_it_is_read_from_the_round_or_the_latest_test_and_falls_where_it_gets_better(of, figure):
    assert gauge(of).read(7.0, SCORE) == figure
    assert gauge(of).read(7.0, None) == (7.0 if of == "loss" else None)


def test_a_figure_that_nobody_tests_is_refused_at_the_start():
    for learner, text in ((Learner(), "the task has no such test metric"), (Learner(None), "no test data")):
        with pytest.raises(UserError, match=text) as caught:
            gauge("rocket", learner)
        assert caught.value.key == "training.stop"
        assert "loss" in caught.value.allowed


@pytest.mark.parametrize("stop", [None, "after 2 h"])
def test_nothing_is_tested_where_nothing_must_improve(stop):
    assert gauge_of(TrainingConfig(stop=stop), None) is None
