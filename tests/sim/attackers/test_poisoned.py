"""A poisoned learner trains on other data and is the same in all else; success is measured on models of the honest."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from p2pfl.config import TaskConfig, TrainingConfig
from p2pfl.errors import UserError
from p2pfl.learn import RoundStart, make_learner
from sim import parse_attack, poisoned
from sim.attacks.poison import success


def learner(task="digits"):
    return make_learner(
        TaskConfig(name=task),
        TrainingConfig(rounds=1),
        seed=0,
        node_index=1,
        node_count=8,
        node_name="node1",
        base_dir=Path(),
        local={},
        local_dir=Path(),
    )


@pytest.fixture(scope="module")
def digits():
    return learner()


def test_labels_are_flipped_for_training_and_not_for_the_test(digits):
    spoiled = poisoned(digits, parse_attack("label-flip").poison)
    assert torch.equal(spoiled.train_set.targets, 9 - digits.train_set.targets)
    assert spoiled.test_set is digits.test_set
    assert (spoiled.samples, spoiled.shape_digest) == (digits.samples, digits.shape_digest)
    assert (spoiled.initial() == digits.initial()).all()


def test_a_poisoned_round_ends_elsewhere(digits):
    start = digits.initial()
    spoiled = poisoned(digits, parse_attack("backdoor").poison)
    assert (spoiled.train(RoundStart(start), 0).vector != digits.train(RoundStart(start), 0).vector).any()


def test_a_model_that_has_learned_the_poison_has_succeeded_and_an_honest_one_has_not(digits):
    poison = parse_attack("backdoor").poison
    models = {}
    for name, of in (("honest", digits), ("fooled", poisoned(digits, poison))):
        models[name] = digits.initial()
        for index in range(30):
            models[name] = of.train(RoundStart(models[name]), index).vector
    found = success(digits, poison, models)
    assert found["fooled"] > 0.8
    assert found["honest"] < 0.3


def test_a_learner_without_labels_cannot_be_poisoned():
    with pytest.raises(UserError, match="cannot be poisoned"):
        poisoned(learner("quadratic"), parse_attack("label-flip").poison)
