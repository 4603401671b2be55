"""Liars that train on poisoned data, and how well that works on the honest."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.learn.interface import Learner, Vector
from p2pfl.learn.trainer import TorchLearner
from sim.attacks import Poison
from sim.attacks.poison import LABELED, classes_of
from sim.learning.nodes import TorchNodes


def poisoned(learners: Sequence[Learner], poison: Poison, liars: frozenset[int]) -> TorchNodes:
    """The same learners, but for the training sets of `liars`.

    Raises:
        UserError: the task's data cannot be poisoned so.
    """
    if not isinstance(learners, TorchNodes):
        raise UserError("learners of the task's own cannot be poisoned", key="attack", allowed=LABELED)
    classes, seed = classes_of(learners.prototype), learners.prototype.context.seed
    for test in learners.tests:
        poison.probe(test, classes=classes)
    sets = [
        poison.spoil(learners.train_set(node), classes=classes, seed=seed, node=node)
        if node in liars
        else learners.train_set(node)
        for node in range(len(learners))
    ]
    spoiled = TorchNodes(learners.prototype, learners.contexts, sets)
    spoiled.tests, spoiled.test_of = learners.tests, learners.test_of
    return spoiled


def success(
    learners: Sequence[Learner], poison: Poison, models: NDArray[np.floating], nodes: Sequence[int]
) -> list[float | None]:
    """Of the model (row) of each of `nodes`: the share of its probe that goes where the poison leads."""
    return [_success(learners[node], poison, models[row]) for row, node in enumerate(nodes)]


def _success(learner: Learner, poison: Poison, model: Vector) -> float | None:
    if not isinstance(learner, TorchLearner) or learner.test_set is None:
        return None
    probe = poison.probe(learner.test_set, classes=classes_of(learner))
    if not len(probe):
        return None
    probed = copy(learner)
    probed.test_set = probe
    score = probed.evaluate(model, "test")
    return None if score is None else score.accuracy
