"""Rounds trained by other processes are those of this one, bit for bit, whoever fails, crashes or dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from p2pfl import Federation, Task
from p2pfl.config.model import TaskConfig
from p2pfl.errors import LearningError, UserError
from p2pfl.learn.interface import LocalRound, RoundStart, Score
from p2pfl.methods.variate import Variate
from sim import simulate
from sim.federations import describe
from sim.learning import workers
from sim.learning.workers import RoundPool, WorkerDied
from sim.worlds.model import CrashSpec, LiarSpec, LinkSpec, WorldSpec

SIZE = 3
CRASHES = (
    CrashSpec(nodes=(1,), at_s=0.05, down_s=0.03),
    CrashSpec(nodes=(2,), at_s=0.08, down_s=0.03, amnesia=True),
)


class Counting:
    """A round adds its number, and how many rounds the node has had, which it keeps to itself."""

    size, personal, samples = SIZE, 0, 7

    def __init__(self, node, does=None):
        self.node, self.does, self.rounds = node, does, 0

    def local_state(self):
        return {"rounds": np.array(self.rounds)}

    def load_local_state(self, state):
        self.rounds = int(state["rounds"])

    def train(self, start, number):
        if self.does is not None:
            self.does()
        self.rounds += 1
        vector = start.model + sum(start.given.values()) + np.float32(number + self.rounds)
        return LocalRound(vector=vector, steps=2, learning_rate=0.5, samples=7, loss=float(self.node))

    def evaluate(self, model, part):
        return Score(accuracy=float(model[0]), loss=float(self.rounds), samples=1) if part == "test" else None


def fails():
    raise LearningError("no more disk")


def refuses():
    raise UserError("too large", key="task.model", value=5, allowed="4")


def breaks():
    raise ZeroDivisionError


def dies():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def pool_of():
    """Makes pools, whose processes are gone afterwards."""
    made = []

    def make(*does, count=2):
        made.append(RoundPool([Counting(node, one) for node, one in enumerate(does)], Variate(), count))
        return made[-1]

    yield make
    for pool in made:
        pool.close()
    assert not multiprocessing.active_children()


def model_of(node):
    return np.full(SIZE, 10.0 * node, np.float32)


def test_each_round_is_that_of_its_node_in_whatever_order_they_end(pool_of, monkeypatch):
    """With fewer slots than rounds in flight."""
    monkeypatch.setattr(workers, "MOST_SLOTS", 2)
    pool, given = pool_of(*[None] * 6), {"correction": np.full(SIZE, 0.5, np.float32)}
    for node in range(6):
        start = RoundStart(model_of(node), given, Variate()) if node == 4 else RoundStart(model_of(node))
        pool.begin(node, node, start)
    pool.drop(3)
    for node in (5, 0, 4, 2, 1):
        local = pool.end(node)
        np.testing.assert_array_equal(local.vector, model_of(node) + node + 1 + 0.5 * (node == 4))
        assert (local.steps, local.learning_rate, local.samples, local.loss) == (2, 0.5, 7, float(node))


def test_what_a_node_keeps_to_itself_goes_along_but_not_that_of_a_round_that_was_dropped(pool_of):
    pool = pool_of(None)
    for expected in (1.0, 2.0):
        pool.begin(0, 0, RoundStart(model_of(0)))
        assert pool.end(0).vector[0] == expected
    pool.begin(0, 0, RoundStart(model_of(0)))
    pool.drop(0)
    (score,) = pool.evaluate(model_of(4)[None], "test", [0])
    assert (score.accuracy, score.loss) == (40.0, 2.0)
    assert pool.evaluate(model_of(4)[None], "local", [0]) == [None]


def test_a_round_that_was_dropped_leaves_nothing_to_a_node_that_keeps_nothing_yet(pool_of, monkeypatch):
    """As an optimizer that is kept, before the first round."""
    monkeypatch.setattr(Counting, "local_state", lambda one: {"rounds": np.array(one.rounds)} if one.rounds else {})
    monkeypatch.setattr(
        Counting, "load_local_state", lambda one, state: setattr(one, "rounds", int(state.get("rounds", 0)))
    )
    pool = pool_of(None, count=1)
    for _ in range(2):
        pool.begin(0, 0, RoundStart(model_of(0)))
        pool.evaluate(model_of(0)[None], "test", [0])  # and the round before it is done
        pool.drop(0)
    pool.begin(0, 0, RoundStart(model_of(0)))
    assert pool.end(0).vector[0] == 1.0


def test_errors_arrive_as_they_were_and_leave_other_rounds_alone(pool_of):
    pool = pool_of(fails, refuses, breaks, None)
    for node in range(4):
        pool.begin(node, 0, RoundStart(model_of(node)))
    with pytest.raises(LearningError, match=r"^no more disk$"):
        pool.end(0)
    with pytest.raises(UserError, match=r"task\.model: too large \(found 5\); allowed: 4"):
        pool.end(1)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        pool.end(2)
    assert pool.end(3).loss == 3.0


def test_a_process_that_dies_is_one_clear_error(pool_of):
    pool = pool_of(dies)
    pool.begin(0, 0, RoundStart(model_of(0)))
    with pytest.raises(WorkerDied, match=r"process \d of 2, which trained local rounds, is gone: .*SIGKILL"):
        pool.end(0)


def test_where_no_process_may_be_forked_that_is_said(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UserError, match=r"workers: on darwin .*allowed: 1; more on Linux"):
        RoundPool([Counting(0)], Variate(), 2)


def test_a_learner_that_may_keep_something_in_its_process_is_not_copied():
    learner = Counting(0)
    learner.stays_in_process = True
    with pytest.raises(UserError, match=r"workers: .*keep something in their process.*found 2.*allowed: 1"):
        RoundPool([Counting(1), learner], Variate(), 2)


# -- whole runs --------------------------------------------------------------------------------------------------------


def quadratic(**training):
    federation = describe(nodes=5, rounds=3, topology="ring", compressor="q8", seed=1)
    training = {"local_steps": 2, "closing_rounds": 2, "learning_rate": 0.1} | training
    task, gossip = TaskConfig(name="quadratic"), replace(federation.gossip, linger_s=1.0)
    return replace(federation, task=task, training=replace(federation.training, **training), gossip=gossip)


def network(*layers):
    """A task whose convolution torch does not batch with the same bits."""
    images = torch.randn(24, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(24) % 3

    def model():
        convolution = nn.Conv2d(1, 4, 3, padding=1)
        return nn.Sequential(convolution, *[one() for one in layers], nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))

    def data(context):
        return (images[context.node :: 3], labels[context.node :: 3]), (images[:8], labels[:8])

    return Task(model=model, data=data)


def figures(federation, count, **how):
    report = simulate(federation, workers=count, references=False, **how)
    assert not multiprocessing.active_children()
    assert report.batching.workers == count
    return report.digest, report.value_digest, report.loss, [row.loss for row in report.nodes]


@pytest.mark.parametrize(
    "world", [WorldSpec(links=LinkSpec(loss=0.1)), WorldSpec(liars=LiarSpec(attack="nan", count=1))]
)
def test_a_run_in_several_processes_is_that_in_one(world):
    """Put off, or with liars who are refused one operation at a time."""
    assert figures(quadratic(), 1, world=world) == figures(quadratic(), 2, world=world)


@pytest.mark.long
@pytest.mark.parametrize(
    ("layers", "settings"),
    [
        ((), {}),
        ((lambda: nn.BatchNorm2d(4),), {}),
        ((nn.Dropout,), {"method": "momentum"}),
        ((), {"keep_optimizer": True, "optimizer": "adam"}),
        ((), {"share": ["0.*"]}),
        ((), {"stop": "no improvement in 2 rounds"}),
    ],
    ids=["convolution", "norm", "dropout", "optimizer", "personal", "stop"],
)
def test_convolutions_have_the_same_bits_in_any_number_of_processes(layers, settings):
    task = network(*layers)
    federation = Federation(task=task, nodes=4, topology="complete", rounds=4, local_steps=2, batch_size=4, **settings)
    world = WorldSpec(crashes=CRASHES, links=LinkSpec(loss=0.05))
    one, *others = (figures(federation, count, world=world) for count in (1, 2, 3))
    assert others == [one, one]


@pytest.mark.long
def test_an_optimizer_that_is_kept_starts_again_with_a_node_that_has_lost_its_disk():
    """Put off, rounds were trained that a crash took back, and their optimizer's state stayed."""
    kept = {"keep_optimizer": True, "optimizer": "adam"}
    federation = Federation(task=network(), nodes=3, topology="complete", rounds=3, local_steps=2, batch_size=4, **kept)
    crashes = tuple(CrashSpec(nodes=(node,), at_s=0.02, down_s=0.02, amnesia=True) for node in range(3))
    one, *others = (
        simulate(federation, world=WorldSpec(crashes=crashes), references=False, **how)
        for how in ({"batching": False}, {}, {"workers": 2})
    )
    assert one.batching.why is None
    assert {found.batching.why for found in others} == {
        "nodes crash that keep something beside the model, such as an optimizer's state"
    }
    assert {found.value_digest for found in others} == {one.value_digest}


@pytest.mark.long
def test_a_run_that_diverges_is_done_again_in_several_processes_too():
    with np.errstate(all="ignore"):
        assert figures(quadratic(learning_rate=1e9), 1) == figures(quadratic(learning_rate=1e9), 2)


def test_a_run_that_is_stopped_leaves_no_process():
    def stop(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(quadratic(), workers=2, references=False, on_progress=stop)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(("count", "how"), [(0, {}), (2, {"check": True}), (2, {"batching": False})])
def test_single_steps_are_those_of_one_process(count, how):
    with pytest.raises(UserError, match=f"workers: .*found {count}.*allowed: "):
        simulate(quadratic(), workers=count, **how)
