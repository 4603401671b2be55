"""The accuracy that a node ends with is that of the model it ends with, or is marked as an older one's."""

from __future__ import annotations

import threading

import pytest

from p2pfl.learn import Score
from p2pfl.node import application

pytestmark = pytest.mark.usefixtures("lone")

EVERY = 5
ROUNDS = 12


class Sluggish:
    """Its accuracy is a figure of the model. From round `after` on its tests, or its rounds, last until `let_go`."""

    def __init__(self, learner):
        self.learner = learner
        self.held, self.after = "", 0
        self.holds = False
        self.let_go, self.began = threading.Event(), threading.Event()

    def __getattr__(self, name):
        return getattr(self.learner, name)

    def evaluate(self, vector, part):
        score = Score(accuracy=float(vector.sum()), loss=0.0, samples=1)
        self._pause("test")
        return score

    def train(self, start, index):
        self.holds |= index >= self.after
        self._pause("round")
        return self.learner.train(start, index)

    def hold(self, what, *, after):
        self.held, self.after = what, after

    def _pause(self, what):
        if self.holds and self.held == what:
            self.began.set()
            self.let_go.wait(30.0)


@pytest.fixture
def hasty(monkeypatch):
    """A node that is stopped has no patience with its learner, so that no test waits for it."""
    for name in ("LAST_ROUND_S", "LAST_TEST_S"):
        monkeypatch.setattr(application, name, 0.05)


@pytest.fixture
async def pair(ward, start, hasty, patient):
    """Two nodes and the learner of the first."""
    field = ward(2, training={"rounds": ROUNDS, "closing_rounds": 6, "evaluate_every": EVERY})
    nodes = start(field, abreast=True)
    learners = []
    for node in nodes:
        learners.append(Sluggish(node.application.setup.learner))
        node.learn_with(learners[-1])
    yield field, nodes, learners[0]
    for learner in learners:
        learner.let_go.set()


def accuracy_on_disk(field, index=0):
    return pytest.approx(float(field.model(index).sum()), rel=1e-5)


async def test_a_test_that_outlasts_the_closing_rounds_is_waited_for_and_the_last_model_tested(pair):
    field, nodes, learner = pair
    learner.hold("test", after=ROUNDS - 1)
    await nodes[1].result()
    await nodes[0].until(lambda: nodes[0].phase in ("testing", "finished"))
    threading.Timer(0.5, learner.let_go.set).start()
    result = await nodes[0].result()
    assert result.finished
    assert result.accuracy == accuracy_on_disk(field)
    assert result.tested_round == result.rounds >= ROUNDS
    assert not result.test_is_stale
    assert nodes[0].lines[-1].accuracy == result.accuracy


async def test_while_it_is_waited_for_the_figure_is_marked_and_stop_ends_the_wait(pair, caplog):
    field, nodes, learner = pair
    learner.hold("test", after=ROUNDS - 1)
    await nodes[0].until(lambda: nodes[0].phase == "testing")
    assert nodes[0].status.test_is_stale
    result = await nodes[0].stop()
    assert result.finished, "all rounds were done, and the model is on the disk"
    assert result.accuracy != accuracy_on_disk(field)
    assert (result.tested_round, result.test_is_stale) == (10, True)
    assert "nothing that was learned is lost: the last model is not tested, its accuracy is that after round 10" in (
        caplog.text
    )


async def test_a_node_that_is_stopped_in_a_long_test_says_that_nothing_is_lost(pair, caplog):
    _, nodes, learner = pair
    learner.hold("test", after=EVERY + 1)
    await nodes[0].until(learner.began.is_set)
    result = await nodes[0].stop()
    assert (result.finished, result.rounds) == (False, 2 * EVERY)
    assert (result.tested_round, result.test_is_stale) == (EVERY, True)
    assert "stopped in a long test; nothing that was learned is lost" in caplog.text


async def test_a_node_that_is_stopped_in_a_long_round_says_that_its_work_is_discarded(pair, caplog):
    _, nodes, learner = pair
    learner.hold("round", after=EVERY + 1)
    await nodes[0].until(learner.began.is_set)
    result = await nodes[0].stop()
    assert (result.tested_round, result.test_is_stale) == (EVERY, True)
    assert "stopped in a long local round, whose work is discarded" in caplog.text


async def test_a_node_that_is_stopped_between_two_tests_tests_its_last_model(pair, monkeypatch):
    field, nodes, learner = pair
    for name in ("LAST_ROUND_S", "LAST_TEST_S"):
        monkeypatch.setattr(application, name, 30.0)
    learner.hold("round", after=EVERY + 1)
    await nodes[0].until(learner.began.is_set)
    nodes[0].application.stop()
    learner.let_go.set()
    result = await nodes[0].result()
    assert result.rounds == EVERY + 1
    assert not result.test_is_stale
    assert result.tested_round == result.rounds
    assert result.accuracy == accuracy_on_disk(field)


async def test_while_a_node_trains_its_latest_test_is_not_stale(pair):
    _, nodes, _ = pair
    results = [await node.result() for node in nodes]
    assert [result.test_is_stale for result in results] == [False, False]
    trained = [line for line in nodes[0].lines if line.phase == "training"]
    assert trained
    assert not any(line.test_is_stale for line in trained)


async def test_rare_tests_are_marked_with_their_round_and_the_last_model_is_tested(ward, start, patient, monkeypatch):
    """With "auto", a node says of a figure in between which round it is from, and ends with one of its last model."""
    monkeypatch.setattr("p2pfl.node.learner_runner.TEST_SHARE", 0.0)
    field = ward(2, training={"rounds": 6, "closing_rounds": 2, "evaluate_every": "auto"})
    node, _ = start(field, abreast=True)
    learner = Sluggish(node.application.setup.learner)
    node.learn_with(learner)
    learner.hold("round", after=4)
    await node.until(learner.began.is_set)
    status = node.status
    assert (status.rounds, status.tested_round, status.test_is_stale) == (4, 1, True)
    learner.let_go.set()
    result = await node.result()
    assert (result.tested_round, result.test_is_stale) == (result.rounds, False)
