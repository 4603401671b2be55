"""Rounds computed before their time is over are those that each learner would do alone, whoever fails or crashes."""

from __future__ import annotations

import numpy as np
import pytest

from p2pfl.errors import LearningError
from p2pfl.learn.interface import LocalRound, RoundStart
from p2pfl.methods.variate import Variate
from sim.learning.batched import Ahead

SIZE = 3


class Alone:
    def __init__(self, node, *, fails=False):
        self.node, self.fails = node, fails

    def train(self, start, index):
        if self.fails:
            raise LearningError("no more disk")
        pull = start.given.get("correction", 0)
        return LocalRound(
            vector=start.model + pull + index, steps=2, learning_rate=0.5, samples=7, loss=float(self.node)
        )


class Together:
    """A group fails as a whole if one of its nodes does, as user code in one call would."""

    def rate(self, rounds, elapsed_s):
        return 0.5

    method = Variate()

    def __init__(self, fails=()):
        self.learners = [Alone(node, fails=node in fails) for node in range(4)]
        self.samples = [7] * 4
        self.calls = []

    def steps(self, node):
        return 2

    def train(self, nodes, rounds, starts, out):
        self.calls.append(nodes.tolist())
        for row, node in enumerate(nodes):
            out[row] = self.learners[node].train(starts.alone(row, self.method), int(rounds[row])).vector
        return nodes.astype(float)


def begin(ahead, nodes):
    for node in nodes:
        ahead.begin(node, start_of(node), node + 1)


def start_of(node):
    model = np.full(SIZE, 10.0 * node)
    return RoundStart(model, {"correction": np.full(SIZE, 0.5)}, Variate()) if node == 2 else RoundStart(model)


def same(one, other):
    assert np.array_equal(one.vector, other.vector)
    assert (one.steps, one.learning_rate, one.samples, one.loss) == (
        other.steps,
        other.learning_rate,
        other.samples,
        other.loss,
    )


def alone(node):
    return Alone(node).train(start_of(node), node + 1)


def test_all_rounds_under_way_are_one_call_and_each_is_its_own():
    learners = Together()
    ahead = Ahead(learners)
    begin(ahead, [3, 0, 2])
    for node in (0, 2, 3):
        same(ahead.end(node), alone(node))
    assert learners.calls == [[0, 2, 3]]


def test_a_round_that_begins_later_is_in_the_next_call():
    learners = Together()
    ahead = Ahead(learners)
    begin(ahead, [0, 1])
    ahead.end(0)
    begin(ahead, [3])
    same(ahead.end(1), alone(1))
    same(ahead.end(3), alone(3))
    assert learners.calls == [[0, 1], [3]]


def test_a_round_that_never_ends_is_not_computed():
    learners = Together()
    ahead = Ahead(learners)
    begin(ahead, [0, 1])
    ahead.drop(1)
    ahead.end(0)
    assert learners.calls == [[0]]


def test_one_learner_that_fails_leaves_the_others_rounds_alone():
    ahead = Ahead(Together(fails=[1]))
    begin(ahead, [0, 1, 2])
    same(ahead.end(0), alone(0))
    same(ahead.end(2), alone(2))
    with pytest.raises(LearningError, match="no more disk"):
        ahead.end(1)
