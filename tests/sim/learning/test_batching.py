"""Rounds and scores of many nodes in one call have the bits of each alone, or are done alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from p2pfl.config import TrainingConfig
from p2pfl.errors import LearningError
from p2pfl.learn import Distinct, NodeContext, QuadraticTask, RoundStart, Task, learner_for, mlp
from p2pfl.methods import Variate
from sim import (
    BatchedLearners,
    ChurnSpec,
    ComputeSpec,
    LiarSpec,
    LinkSpec,
    ManyModels,
    Spread,
    TorchNodes,
    WorldSpec,
    describe,
    make_learners,
    simulate,
)
from sim.learning.batching import FEWEST

torch.set_num_threads(1)

METHOD = Variate()
COUNTS = (5, 14, 14, 9, 23, 16, 17, 14)


def labelled(node, count, shape=(24,), classes=4):
    """Inputs (count, *shape) and labels, other ones for each node."""
    rng = np.random.default_rng([7, node])
    return rng.standard_normal((count, *shape)).astype(np.float32), rng.integers(0, classes, count)


def context(node, nodes=8, seed=3):
    return NodeContext(node=node, nodes=nodes, name=f"n{node}", seed=seed, base_dir=Path())


def learners(model, *, training=None, counts=COUNTS, draw=labelled, tested=True, **fields):
    """One learner for each of `counts`, of one task, all with the same test set."""
    test = draw(len(counts), 40)

    def data(node):
        return draw(node.node, counts[node.node]), test if tested else None

    task = Task(name="mine", model=model, data=fields.pop("data", data), **fields)
    training = training or TrainingConfig(local_steps=2, batch_size=8)
    made = [learner_for(task, context(node, len(counts)), training) for node in range(len(counts))]
    tests = Distinct()
    numbers = [tests.add(one.test_set) for one in made]
    nodes = TorchNodes(made[0], [one.context for one in made], [one.train_set for one in made])
    return nodes.with_tests(tests, numbers)


def work_of(made, *, rounds=2):
    """Every node in each of `rounds` rounds, in no order, every other one with a correction."""
    rng, initial = np.random.default_rng(0), made[0].initial()
    noise = rng.standard_normal((len(made) * rounds, 2, len(initial))).astype(np.float32)
    starts = [
        RoundStart(initial + one / 20, {"correction": other / 50}, METHOD)
        if place % 2
        else RoundStart(initial + one / 20)
        for place, (one, other) in enumerate(noise)
    ]
    order = rng.permutation(len(noise)).tolist()
    return [(place % len(made), start, place // len(made)) for place, start in zip(order, starts, strict=True)]


def same(one, other):
    assert one.vector.tobytes() == other.vector.tobytes()
    about = ("steps", "learning_rate", "samples", "loss")
    assert [getattr(one, name) for name in about] == [getattr(other, name) for name in about]


def assert_as_alone(made):
    """Together, `made` have the bits of each of them. Returns them together."""
    together, work = BatchedLearners(made, METHOD), work_of(made)
    after = together.train(work)
    for (node, start, index), found in zip(work, after, strict=True):
        same(found, made[node].train(start, index))
    models, nodes = np.stack([one.vector for one in after[: len(made)]]), np.arange(len(made))
    for part in ("test", "local"):
        alone = [learner.evaluate(model, part) for learner, model in zip(made, models, strict=True)]
        assert together.evaluate(models, part, nodes) == alone
    return together


ROUNDS = [
    {"local_steps": 5},
    {"local_steps": 2, "optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01},
    {"local_steps": 2, "optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.1},
    {"local_steps": 2, "schedule": "cosine:rounds=2,to=0.5"},
    {"local_steps": 2, "momentum": 0.5, "logit_adjust": 1.0},
]


def deep():
    return mlp(24, 32, 24, 4)


@pytest.mark.parametrize("rounds", ROUNDS, ids=str)
def test_a_round_in_a_group_has_the_bits_of_the_shipped_learner(rounds):
    """Several layers, nodes of two kinds, corrections on some rows; losses and scores too."""
    together = assert_as_alone(learners(deep, training=TrainingConfig(batch_size=8, **rounds)))
    assert together.how.startswith("batched, but 1 of 8 nodes one at a time: few have batches of the same sizes")


def test_regression_has_the_bits_of_the_shipped_learner():
    def measured(node, count):
        inputs, _ = labelled(node, count)
        return inputs, (inputs[:, :20] ** 2 - inputs[:, 4:]).astype(np.float32)

    metrics = {"worst": lambda outputs, targets: (outputs - targets).abs().max()}
    training = TrainingConfig(local_steps=3, batch_size=5)
    made = learners(
        lambda: mlp(24, 32, 20), draw=measured, loss=functional.mse_loss, metrics=metrics, training=training
    )
    assert assert_as_alone(made).how == "batched"


@pytest.mark.parametrize(("nodes", "partition"), [(8, "shards:2"), (100, "shards:2"), (1000, "draw:14")])
def test_the_shipped_model_is_batched_with_the_batches_that_it_has_by_default(nodes, partition):
    how = make_learners(describe(nodes=nodes, partition=partition)).how
    assert how.startswith("batched")
    assert "rounds otherwise" not in how


class Rounding(torch.autograd.Function):
    """The identity for one model; for several at once off by a millionth, as a kernel for another shape may be."""

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(_, gradient):
        return gradient

    @staticmethod
    def vmap(info, in_dims, x):
        return x * (1 + 3e-6 * (info.batch_size > FEWEST)), in_dims[0]


class Unstable(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.layer, self.rows = nn.Linear(24, 4), rows

    def forward(self, x):
        x = self.layer(x)
        return Rounding.apply(x) if len(x) == self.rows else x


def test_nodes_whose_groups_round_otherwise_go_one_at_a_time():
    """Those with batches of eight rows, in groups of more than five."""
    made = learners(lambda: Unstable(8), counts=(20,) * 8 + (6,) * 6)
    how = assert_as_alone(made).how
    assert how == "batched, but 8 of 14 nodes one at a time: a group rounds otherwise than a node alone"


def test_scores_that_round_otherwise_in_a_group_are_done_one_at_a_time():
    """The test set has forty rows."""
    together = assert_as_alone(learners(lambda: Unstable(40)))
    assert together.how.startswith("batched")


class Branching(nn.Linear):
    def forward(self, x):
        out = super().forward(x)
        return out if out.sum() > 0 else 2 * out


class Reader(torch.utils.data.Dataset):
    def __init__(self, pair):
        self.inputs, self.targets = pair

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, row):
        return self.inputs[row], self.targets[row]


FALLBACKS = {
    "torch.func cannot batch the model: vmap: called random": {
        "model": lambda: nn.Sequential(nn.Linear(24, 8), nn.Dropout(0.5), nn.Linear(8, 4))
    },
    "the model has buffers": {"model": lambda: nn.Sequential(nn.Linear(24, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))},
    "data-depende": {"model": lambda: Branching(24, 4)},
    "row by row": {"model": deep, "data": lambda node: (Reader(labelled(node.node, COUNTS[node.node])), None)},
    "shape or type": {
        "model": lambda: nn.Sequential(nn.AdaptiveAvgPool1d(3), nn.Linear(3, 4)),
        "data": lambda node: (labelled(node.node, 9, shape=(24 + node.node,)), None),
    },
    "keeps something": {"model": deep, "training": TrainingConfig(local_steps=2, keep_optimizer=True, momentum=0.5)},
}


@pytest.mark.parametrize("reason", FALLBACKS)
def test_what_cannot_be_batched_goes_one_at_a_time_and_says_why(reason):
    made = learners(**FALLBACKS[reason])
    together = BatchedLearners(made, METHOD) if reason == "keeps something" else assert_as_alone(made)
    assert together.how.startswith("one at a time: ")
    assert reason in together.how


def test_learners_without_torch_go_one_at_a_time():
    task, training = QuadraticTask(size=5, condition=3, noise=0.1), TrainingConfig(local_steps=3, learning_rate=0.1)
    together = assert_as_alone([task.learner(context(node), training) for node in range(8)])
    assert together.how == "one at a time: the task has learners of its own"
    assert (together.steps(2), together.samples[2]) == (3, 100)


def begun(together, nodes, initial):
    """Begin a round at each of these nodes; return their starts."""
    starts = {node: RoundStart(initial + np.float32(node / 10)) for node in nodes}
    for node, start in starts.items():
        together.begin(node, start, node)
    return starts


def test_all_rounds_under_way_are_one_call_and_each_is_its_own(monkeypatch):
    made, calls, train = learners(deep, counts=(14,) * 14), [], ManyModels.train
    together, initial = BatchedLearners(made, METHOD), made[0].initial()

    def noted(models, work):
        calls.append([node for node, _, _ in work])
        return train(models, work)

    monkeypatch.setattr(ManyModels, "train", noted)
    starts = begun(together, range(8), initial)
    together.drop(3)
    same(together.end(1), made[1].train(starts[1], 1))
    starts |= begun(together, range(8, 14), initial)
    for node in (0, 2, 4, 5, 6, 7, *range(8, 14)):
        same(together.end(node), made[node].train(starts[node], node))
    assert calls == [[0, 1, 2, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13]]


def test_one_round_that_fails_leaves_the_others_alone(monkeypatch):
    """In a group it is not known which one it was."""
    made = learners(deep)
    together, train = BatchedLearners(made, METHOD), type(made[0]).train

    def failing(*_):
        raise RuntimeError("somewhere in the group")

    def broken(learner, start, index):
        if learner.context.node == 3:
            raise LearningError("the user's own")
        return train(learner, start, index)

    starts = begun(together, range(8), made[0].initial())
    expected = [made[node].train(start, node) for node, start in starts.items()]
    monkeypatch.setattr(ManyModels, "learn", failing)
    monkeypatch.setattr(type(made[0]), "train", broken)
    with pytest.raises(LearningError, match="the user's own"):
        together.end(3)
    for node in {*range(8)} - {3}:
        same(together.end(node), expected[node])


WORLD = WorldSpec(
    compute=ComputeSpec(speed=Spread(kind="log-uniform", low=0.1, high=1.0), jitter=0.2),
    links=LinkSpec(drop=0.05, duplication=0.1, jitter_s=0.02),
    churn=ChurnSpec(up_s=0.1, down_s=0.03, until_s=0.3, amnesia=0.5),
    liars=LiarSpec(attack="noise:0.5", count=1),
    evaluate_every_s=0.1,
)


@pytest.mark.parametrize("rule", ["mean", pytest.param("trimmed-mean:b=1", marks=pytest.mark.long)])
def test_a_run_with_crashes_is_the_same_whether_rounds_are_batched_or_not(rule, monkeypatch):
    """Event by event, bit by bit, figure by figure."""
    made = describe(nodes=9, topology="random-regular:degree=4", rounds=4, partition="dirichlet:0.5", rule=rule)
    training = replace(made.training, local_steps=3, batch_size=8, closing_rounds=2)
    made = replace(made, training=training, gossip=replace(made.gossip, start_wait_s=0.2, linger_s=0.3))
    monkeypatch.setattr("sim.learning.batching.WORTH_A_LOOK", 0)
    batched = simulate(made, world=WORLD, references=False)
    monkeypatch.setattr("sim.learning.batching.same_bits", lambda *_: (False, False))
    alone = simulate(made, world=WORLD, references=False)
    assert batched.computed.endswith("training batched")
    assert "training one at a time" in alone.computed
    assert (batched.digest, batched.value_digest) == (alone.digest, alone.value_digest)
    assert batched.history == alone.history
