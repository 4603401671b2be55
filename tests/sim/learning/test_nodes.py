from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from p2pfl.errors import UserError
from p2pfl.learn import RoundStart, make_learner
from sim import load_learners, make_learners

TASK = """
import numpy as np
import torch
from p2pfl import Task

made = []


def data(node):
    rng = np.random.default_rng(node.node)
    inputs = rng.standard_normal((6, 24)).astype(np.float32)
    labels = rng.integers(0, LABELS, 6) if node.node == 3 else rng.integers(0, 4, 6)
    test = np.random.default_rng(node.node // SHARING)
    return (inputs, labels), (test.standard_normal((9, 24)).astype(np.float32), test.integers(0, 4, 9))


def model():
    made.append(1)
    return torch.nn.Linear(24, 4)


task = Task(model=model, data=data)
"""


@pytest.fixture
def written(federation, tmp_path):
    """Make a federation of five nodes with the task above."""

    def make(*, labels=4, sharing=100):
        (tmp_path / "task.py").write_text(TASK.replace("LABELS", str(labels)).replace("SHARING", str(sharing)))
        made = federation(5, task="task.py:task", local_steps=2)
        return replace(made, path=tmp_path / "federation.toml")

    return make


def shipped(made, node):
    return make_learner(
        made.task,
        made.training,
        seed=made.seed,
        node_index=node,
        node_count=len(made.members),
        node_name=made.members[node].name,
        base_dir=made.path.parent,
        local={},
        local_dir=Path(),
    )


@pytest.mark.parametrize("partition", ["iid", "shards:2", "draw:20"])
def test_each_node_has_the_data_and_the_rounds_of_a_real_one(federation, partition):
    made = federation(6, partition=partition, local_steps=3)
    learners = make_learners(made)
    start = learners.initial()
    for node in range(6):
        real = shipped(made, node)
        expected = real.train(RoundStart(start), 4)
        out = learners.learners[node].train(RoundStart(start), 4).vector[None]
        np.testing.assert_array_equal(out[0], expected.vector)
        assert learners.samples[node] == real.samples
        assert learners.evaluate(out, "local", np.array([node])) == [real.evaluate(out[0], "local")]
        assert learners.evaluate(out, "test", np.array([node])) == [real.evaluate(out[0], "test")]


def test_many_nodes_need_one_module(written):
    nodes = load_learners(written())
    nodes[2].train(RoundStart(nodes[2].initial()), 0)
    assert len({id(learner.model.module) for learner in nodes}) == 1
    assert len(nodes[1:3]) == 2
    with pytest.raises(IndexError):
        nodes[5]


def test_nodes_are_views_of_one_pool(federation):
    nodes = load_learners(federation(40))
    whole = nodes.pool.rows.inputs
    assert len(whole) == 40 * 14
    assert all(learner.train_set.inputs.untyped_storage().data_ptr() == whole.data_ptr() for learner in nodes)


@pytest.mark.parametrize(("sharing", "sets"), [(100, 1), (1, 5), (2, 3)])
def test_equal_test_sets_are_kept_once_and_different_ones_apart(written, sharing, sets):
    """The task makes a new one for each node."""
    made = written(sharing=sharing)
    learners = make_learners(made)
    assert len(learners.nodes.tests) == sets
    models = np.repeat(learners.initial()[None], 5, axis=0)
    expected = [shipped(made, node).evaluate(models[node], "test") for node in range(5)]
    assert learners.evaluate(models, "test", np.arange(5)) == expected


def test_a_label_without_an_output_is_refused_at_whichever_node_it_is(written):
    with pytest.raises(UserError, match="class label has no output"):
        make_learners(written(labels=50))


@pytest.mark.long
def test_more_nodes_than_samples_is_still_a_mistake_unless_each_node_draws(federation):
    with pytest.raises(UserError, match="cannot be split") as caught:
        make_learners(federation(2000, partition="iid"))
    assert caught.value.file == "/nowhere/federation.toml"
    assert make_learners(federation(2000, partition="draw:14")).samples == [14] * 2000


def test_loading_leaves_torchs_generator_as_it_was(federation):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    make_learners(federation(3, local_steps=1))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("keep_optimizer", [False, True])
def test_what_a_learner_keeps_between_rounds_stays_with_its_node(federation, keep_optimizer):
    nodes = load_learners(federation(4, local_steps=2, optimizer="adam", keep_optimizer=keep_optimizer))
    assert (nodes[1] is nodes[1]) == keep_optimizer
    assert nodes[1] is not nodes[2]
    outcomes = [nodes[1].train(RoundStart(nodes[1].initial()), 0).vector.tobytes() for _ in range(2)]
    assert (outcomes[0] == outcomes[1]) != keep_optimizer
