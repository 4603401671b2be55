"""What a node with a privacy budget keeps to itself, whatever its learner would tell."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from p2pfl.config import PrivacyConfig
from p2pfl.features.privacy import withheld
from p2pfl.learn import LocalRound, RoundStart, Score
from p2pfl.node import LearnerRunner, Moment, ProgressLines, TrainingFigures


class Talkative:
    """Tells everything. Its loss grows, and it has two classes."""

    train_set = SimpleNamespace(targets=np.array([3, 7]))

    def __init__(self):
        self.loss = 1.0

    def train(self, start, index):
        self.loss *= 2.0
        return LocalRound(vector=start.model, steps=1, learning_rate=0.1, samples=2, loss=self.loss)

    def evaluate(self, vector, part):
        return Score(accuracy=0.5, loss=self.loss, samples=2)

    def local_state(self):
        return {}


def trained(*withheld):
    seen = []
    figures = TrainingFigures(frozenset(withheld))
    shop = LearnerRunner(Talkative(), 1, figures=figures, on_round=lambda state: seen.append(state.loss))
    for index in range(40):
        shop.train(RoundStart(np.zeros(2, np.float32)), index)
        shop.measure(np.zeros(2, np.float32), Moment(index, index))
    return shop, seen


def test_no_loss_no_score_and_no_trend_of_what_is_withheld():
    shop, seen = trained("local", "test")
    assert (shop.figures.loss, shop.figures.tested) == (None, None)
    assert all(map(math.isnan, seen))
    assert shop.score(np.zeros(2, np.float32), "local") is None
    assert shop.figures.losses.growth is None
    assert not shop.figures.losses.own.latest
    assert not shop.figures.losses.tests.latest
    shop, seen = trained()
    assert None not in (shop.figures.loss, shop.figures.tested, shop.figures.losses.growth)
    assert not any(map(math.isnan, seen))


def test_scores_on_a_public_test_set_are_told():
    shop, _ = trained("local")
    assert shop.figures.tested is not None
    assert shop.figures.loss is None


@pytest.mark.parametrize(
    ("plan", "test_set", "parts"),
    [(None, "private", ()), ("a", "private", ("local", "test")), ("a", "public", ("local",))],
)
def test_the_federation_says_whether_its_test_set_is_nobody_s_data(plan, test_set, parts):
    privacy = PrivacyConfig(epsilon=8.0, delta=1e-5, test_set=test_set)
    setup = SimpleNamespace(learner=SimpleNamespace(plan=plan), federation=SimpleNamespace(privacy=privacy))
    assert withheld(setup) == set(parts)
    setup.learner.tests_own = True  # as of a Flower client, whose test set is its own data
    assert withheld(setup) == ({"local", "test"} if plan else set())


@pytest.mark.parametrize(("parts", "classes"), [(("local",), None), ((), [3, 7])])
def test_a_launcher_is_not_told_which_classes_a_node_has(parts, classes):
    figures = TrainingFigures(frozenset(parts))
    status = SimpleNamespace(runner=LearnerRunner(Talkative(), 1, figures=figures))
    assert ProgressLines(print, status, None, lambda: False, sketched=True).unsent_classes == classes
