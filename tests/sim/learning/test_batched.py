from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds_kit import (
    COUNTS,
    METHOD,
    alone,
    assert_as_alone,
    context,
    labelled,
    learners,
    measured,
    round_of_all,
    trained,
)
from torch import nn
from torch.nn import functional

from p2pfl.config.model import TrainingConfig
from p2pfl.errors import LearningError
from p2pfl.learn.digits import mlp
from p2pfl.learn.interface import RoundStart
from p2pfl.learn.quadratic import QuadraticTask
from sim.learning.batched import BatchedLearners
from sim.learning.grouped import RoundStarts

OPTIMIZERS = [
    {"optimizer": "sgd"},
    {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01},
    {"optimizer": "adam", "learning_rate": 0.01},
    {"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.1},
]
SOME_OPTIMIZERS = [
    OPTIMIZERS[2],
    *(pytest.param(one, marks=pytest.mark.long) for one in (*OPTIMIZERS[:2], OPTIMIZERS[3])),
]
ROUNDS = [{"local_steps": 1}, {"local_steps": 5}, {"local_steps": None, "local_epochs": 2}]
EACH_ONCE = [(optimizer, ROUNDS[place % 2]) for place, optimizer in enumerate(OPTIMIZERS)]
OTHERS = [pytest.param(*pair, marks=pytest.mark.long) for pair in product(OPTIMIZERS, ROUNDS) if pair not in EACH_ONCE]


def images(node, count):
    return labelled(node, count, shape=(1, 8, 8))


def cnn():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 4))


def deep():
    return mlp(24, 32, 24, 4)


class Tied(nn.Module):
    """Two layers with one weight, a frozen parameter, one that nothing uses, one of another type, and a buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 4)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.linspace(0.5, 1.5, 24), requires_grad=False)
        self.idle = nn.Parameter(torch.ones(3))
        self.scale = nn.Parameter(torch.ones(24, dtype=torch.float64))
        self.register_buffer("shift", torch.full((24,), 0.1))

    def forward(self, x):
        x = torch.relu(self.second(torch.relu(self.first(x * self.frozen + self.shift))))
        return self.last((x * self.scale).float())


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(24, 4)

    def forward(self, x):
        out = self.layer(x)
        return out if out.sum() > 0 else 2 * out


class Rows(torch.utils.data.Dataset):
    def __init__(self, pair):
        self.inputs, self.targets = pair

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, row):
        return self.inputs[row], self.targets[row]


@pytest.mark.long
@pytest.mark.parametrize(("optimizer", "rounds"), EACH_ONCE + OTHERS, ids=lambda one: "-".join(map(str, one.values())))
def test_a_batched_round_has_the_bits_of_the_shipped_learner(optimizer, rounds):
    """Several layers, unequal numbers of samples, corrections on some rows; losses and scores too."""
    batched = assert_as_alone(learners(deep, training=TrainingConfig(batch_size=8, **optimizer, **rounds)))
    assert (batched.how, batched.batch_stable, batched.verdicts[0].losses) == ("batched", True, True)


@pytest.mark.parametrize("optimizer", OPTIMIZERS[:3:2], ids=lambda one: one["optimizer"])
def test_regression_has_the_bits_of_the_shipped_learner(optimizer):
    made = learners(
        lambda: mlp(24, 32, 20),
        draw=measured,
        loss=functional.mse_loss,
        metrics={"worst": lambda outputs, targets: (outputs - targets).abs().max()},
        training=TrainingConfig(local_steps=3, batch_size=5, **optimizer),
    )
    assert assert_as_alone(made).how == "batched"


@pytest.mark.long
@pytest.mark.parametrize("optimizer", SOME_OPTIMIZERS, ids=lambda one: "-".join(map(str, one.values())))
def test_tied_frozen_idle_and_double_parameters_move_as_in_the_shipped_learner(optimizer):
    made = learners(Tied, training=TrainingConfig(local_steps=3, batch_size=8, **optimizer))
    assert assert_as_alone(made).how == "batched"


def test_a_convolution_has_the_bits_of_the_shipped_learner_whichever_way_it_goes():
    assert_as_alone(learners(cnn, draw=images, training=TrainingConfig(local_steps=2, batch_size=4)))


@pytest.mark.long
def test_nodes_with_a_single_sample_are_batched_too():
    """Their products are so small that torch's batched kernel would round otherwise."""
    made = learners(deep, counts=(12, 1, 12, 2), training=TrainingConfig(local_steps=2))
    assert assert_as_alone(made).how == "batched"


def test_only_nodes_whose_batches_round_otherwise_go_one_at_a_time():
    made = learners(lambda: Unstable(rows=3), counts=(12, 3, 12, 12), training=TrainingConfig(local_steps=2))
    batched = assert_as_alone(made)
    assert batched.how.startswith("batched, but 1 of 4 nodes one at a time: a group rounds otherwise")
    assert batched.batch_stable


def test_without_a_test_set_there_is_no_score():
    made = learners(deep, tested=False)
    batched = assert_as_alone(made)
    assert batched.evaluate(batched.initial()[None], "test", np.array([2])) == [None]


@pytest.mark.long
@settings(max_examples=25)
@given(data=st.data())
def test_how_rows_are_grouped_is_no_part_of_the_result(data):
    batched = everyone()
    work = round_of_all(batched, rounds=3)
    whole, losses = trained(batched, work)
    rows = np.array(data.draw(st.permutations(range(len(whole)))))
    cuts = sorted(data.draw(st.lists(st.integers(1, len(rows) - 1), max_size=4)))
    for part in np.split(rows, cuts):
        out, some = trained(batched, (work[0][part], work[1][part], work[2].of(part)))
        np.testing.assert_array_equal(out, whole[part])
        np.testing.assert_array_equal(some, losses[part])


_EVERYONE = []


def everyone():
    if not _EVERYONE:
        _EVERYONE.append(BatchedLearners(learners(deep), METHOD))
    return _EVERYONE[0]


def test_the_result_may_take_the_place_of_the_start():
    batched = everyone()
    work = round_of_all(batched)
    expected, _ = trained(batched, work)
    rows = work[2].models.copy()
    batched.train(work[0], work[1], replace(work[2], models=rows), rows)
    np.testing.assert_array_equal(rows, expected)


def test_what_the_method_gives_counts_only_in_the_rows_that_it_is_for():
    batched = everyone()
    nodes, rounds, starts = round_of_all(batched)
    one, other, bare = (np.empty_like(starts.models) for _ in range(3))
    batched.train(nodes, rounds, starts, one)
    batched.train(nodes, rounds, replace(starts, by_method=np.ones_like(starts.by_method)), other)
    batched.train(nodes, rounds, RoundStarts(starts.models, np.zeros_like(starts.by_method)), bare)
    marked = starts.by_method
    np.testing.assert_array_equal(one[marked], other[marked])
    np.testing.assert_array_equal(one[~marked], bare[~marked])
    assert (other != bare).any(axis=1).all()


def test_rounds_at_different_rates_of_a_schedule_have_the_bits_of_each_alone():
    training = TrainingConfig(local_steps=2, batch_size=8, schedule="step:rounds=1,by=0.5")
    batched = BatchedLearners(learners(deep, training=training), METHOD)
    assert batched.how == "batched"
    assert max(verdict.group for verdict in batched.verdicts.values()) > 1
    nodes, rounds, starts = round_of_all(batched)
    out = np.empty_like(starts.models)
    batched.train(nodes, rounds, starts, out)
    for row in (0, 5, 11):
        alone = batched.learners[int(nodes[row])].train(starts.alone(row, METHOD), int(rounds[row]))
        np.testing.assert_array_equal(alone.vector, out[row])


@pytest.mark.long
def test_steps_samples_and_rate_are_those_of_the_learners():
    training = TrainingConfig(local_steps=None, local_epochs=2, batch_size=4, learning_rate=0.125)
    made = learners(deep, training=training)
    batched = BatchedLearners(made)
    assert batched.samples == list(COUNTS)
    assert batched.rate(0, 0.0) == 0.125
    start = batched.initial()
    assert [batched.steps(node) for node in range(len(made))] == [one.train(RoundStart(start), 0).steps for one in made]


FALLBACKS = {
    "draws chance": {"model": lambda: nn.Sequential(nn.Linear(24, 8), nn.Dropout(0.5), nn.Linear(8, 4))},
    "buffers that are not shared": {
        "model": lambda: nn.Sequential(nn.Linear(24, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    },
    "depends on its values": {"model": Branching},
    "row by row": {
        "model": deep,
        "data": lambda node: (Rows(labelled(node.node, COUNTS[node.node])), labelled(99, 30)),
    },
    "shape or type": {
        "model": lambda: nn.Sequential(nn.AdaptiveAvgPool1d(3), nn.Linear(3, 4)),
        "data": lambda node: (labelled(node.node, 9, shape=(24 + node.node,)), None),
    },
}


@pytest.mark.parametrize("reason", FALLBACKS)
def test_what_cannot_be_batched_goes_one_at_a_time_and_says_why(reason):
    batched = assert_as_alone(learners(**FALLBACKS[reason]))
    assert batched.how.startswith("one at a time: ")
    assert reason in batched.how
    assert batched.batch_stable


def test_a_learner_without_torch_goes_one_at_a_time():
    task = QuadraticTask(size=5, condition=3, noise=0.1)
    training = TrainingConfig(local_steps=3, learning_rate=0.1)
    made = [task.learner(context(node), training) for node in range(8)]
    batched = BatchedLearners(made, METHOD)
    assert batched.how == "one at a time: the task has learners of its own"
    assert (batched.steps(2), batched.rate(0, 0.0), batched.samples[2]) == (3, 0.1, 100)
    work = round_of_all(batched)
    out, _ = trained(batched, work)
    np.testing.assert_array_equal(out, alone(made, *work)[0])


class _Rounding(torch.autograd.Function):
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
        return x * (1 + 3e-6 * (info.batch_size > 3)), in_dims[0]


class Unstable(nn.Module):
    """`rows`: the size of batches that it happens to; None: of any."""

    def __init__(self, rows=None):
        super().__init__()
        self.layer = nn.Linear(24, 4)
        self.rows = rows

    def forward(self, x):
        x = self.layer(x)
        return _Rounding.apply(x) if self.rows in {None, len(x)} else x


@pytest.mark.long
def test_a_model_that_rounds_otherwise_in_groups_is_found_out():
    """Only groups of more than three rows differ."""
    batched = assert_as_alone(learners(Unstable))
    assert batched.how.startswith("one at a time: a group rounds otherwise than a node alone (by ")
    assert 0 < batched.verdicts[0].apart < 1e-5


def test_a_model_that_rounds_otherwise_is_batched_where_the_user_asks_for_it():
    made = learners(Unstable)
    batched = BatchedLearners(made, METHOD, approximate=True)
    assert (batched.how, batched.batch_stable) == ("batched to 1e-05", False)
    work = round_of_all(batched)
    out, _ = trained(batched, work)
    expected, _ = alone(made, *work)
    assert 0 < np.linalg.norm(out - expected) < 1e-5 * np.linalg.norm(expected)


def test_learners_of_two_tasks_are_not_put_together():
    made = [learners(deep)[0], learners(deep)[1]]
    assert BatchedLearners(made).how == "one at a time: the learners are not of one task"


class Failing(nn.Module):
    broken = False

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(24, 4)

    def forward(self, x):
        if Failing.broken:
            raise RuntimeError("the user's own")
        return self.layer(x)


def test_code_that_fails_later_is_a_failure_of_learning(monkeypatch):
    batched = BatchedLearners(learners(Failing))
    assert batched.how == "batched"
    monkeypatch.setattr(Failing, "broken", True)
    with pytest.raises(LearningError, match="the user's own"):
        trained(batched, round_of_all(batched))
