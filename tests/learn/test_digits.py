from __future__ import annotations

import numpy as np
import pytest

from p2pfl.config import TrainingConfig
from p2pfl.learn import RoundStart, learner_for, load_digits
from p2pfl.learn.digits import digits


def test_the_packaged_digits_are_the_1797_of_the_source():
    (inputs, targets), (test_inputs, test_targets) = load_digits()
    assert (len(inputs), len(test_inputs)) == (1437, 360)
    counts = np.bincount(targets) + np.bincount(test_targets)
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (float(inputs.min()), float(inputs.max())) == (0.0, 1.0)


def test_the_test_set_holds_a_fifth_of_each_digit_and_no_training_image():
    (inputs, targets), (test_inputs, test_targets) = load_digits()
    shares = np.bincount(test_targets) / (np.bincount(targets) + np.bincount(test_targets))
    assert np.abs(shares - 0.2).max() < 0.01
    rows = {row.tobytes() for row in inputs.numpy()}
    assert not any(row.tobytes() in rows for row in test_inputs.numpy())


@pytest.mark.parametrize("partition", ["iid", "dirichlet:0.5", "shards:2", "classes:2"])
def test_nodes_share_out_the_training_images(context, partition):
    task = digits(partition=partition)
    learners = [learner_for(task, context(node=node, nodes=8), TrainingConfig()) for node in range(8)]
    assert sum(learner.samples for learner in learners) == 1437
    assert {learner.size for learner in learners} == {2410}
    assert len({learner.shape_digest for learner in learners}) == 1
    assert learners[3].evaluate(learners[3].initial(), "test").samples == 360


@pytest.mark.parametrize("seed", [0, 1])
def test_one_node_with_all_digits_learns_them_with_the_defaults(context, seed):
    learner = learner_for(digits(), context(seed=seed), TrainingConfig())
    vector = learner.initial()
    for round_index in range(TrainingConfig().rounds):
        vector = learner.train(RoundStart(vector), round_index).vector
    assert learner.evaluate(vector, "test").accuracy >= 0.93
