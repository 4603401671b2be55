"""Liars that keep to the protocol and train on poisoned data, and how well that has taught the honest."""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.errors import UserError
from p2pfl.learn.interface import Learner, Vector
from p2pfl.learn.trainer import TorchLearner
from sim.attacks import Poison
from sim.attacks.poison import LABELED, classes_of


def poisoned(learner: Learner, poison: Poison) -> Learner:
    """The same learner with spoiled training data. Raises UserError: its data cannot be poisoned so."""
    known = _torch_learner(learner)
    seed, node = known.context.seed, known.context.node
    spoiled = poison.spoil(known.train_set, classes=classes_of(known), seed=seed, node=node)
    return known.at_node(known.context, spoiled, known.test_set)


def success(learner: Learner, poison: Poison, models: Mapping[str, Vector]) -> dict[str, float]:
    """By node, the share of the test samples its model (d,) labels as the liars taught; empty without any."""
    known = _torch_learner(learner)
    if known.test_set is None:
        return {}
    probe = poison.probe(known.test_set, classes=classes_of(known))
    if not len(probe):
        return {}
    asked = known.at_node(known.context, known.train_set, probe)
    scores = {name: asked.evaluate(model, "test") for name, model in models.items()}
    return {name: score.accuracy for name, score in scores.items() if score and score.accuracy is not None}


def _torch_learner(learner: Learner) -> TorchLearner:
    if isinstance(learner, TorchLearner):
        return learner
    raise UserError("learners of the task's own cannot be poisoned", key="--attack", allowed=LABELED)
