from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from p2pfl.config import TrainingConfig
from p2pfl.errors import UserError
from p2pfl.learn import QuadraticTask, RoundStart
from p2pfl.methods import Variate


@pytest.fixture
def quadratic(context):
    def make(node=0, nodes=3, local=None, training=None, **options):
        place = context(node=node, nodes=nodes, local=local or {})
        return QuadraticTask(**options).learner(place, training or TrainingConfig(learning_rate=0.5))

    return make


def test_one_node_converges_to_its_own_target(quadratic):
    learner = quadratic(nodes=1, condition=4.0)
    vector = learner.initial()
    for round_index in range(20):
        vector = learner.train(RoundStart(vector), round_index).vector
    np.testing.assert_allclose(vector, learner.optimum(), atol=1e-5)
    assert learner.evaluate(vector, "test").loss == pytest.approx(0, abs=1e-9)


def test_averaged_gradients_vanish_at_the_optimum(quadratic):
    options = {"condition": 10.0, "samples": [5, 1, 30]}
    training = TrainingConfig(local_steps=1, learning_rate=1.0)
    learners = [quadratic(node=node, training=training, **options) for node in range(3)]
    optimum = learners[0].optimum()
    steps = [learner.samples * (learner.train(RoundStart(optimum), 0).vector - optimum) for learner in learners]
    np.testing.assert_allclose(sum(steps), 0, atol=1e-12)


def test_no_vector_scores_better_than_the_optimum(quadratic):
    learner = quadratic(condition=5.0, samples=[1, 2, 3])
    best = learner.evaluate(learner.optimum(), "test")
    rng = np.random.default_rng(0)
    nearby = (learner.optimum() + 0.1 * rng.standard_normal(learner.size) for _ in range(20))
    assert all(learner.evaluate(vector, "test").loss > best.loss for vector in nearby)
    assert (best.accuracy, best.samples) == (None, 6)


def test_a_learning_rate_of_zero_changes_nothing(quadratic):
    learner = quadratic(noise=1.0, training=TrainingConfig(learning_rate=0.0))
    start = np.random.default_rng(0).standard_normal(16).astype(np.float32)
    np.testing.assert_array_equal(
        learner.train(RoundStart(start, {"correction": np.ones_like(start)}, Variate()), 0).vector, start
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_answer_has_the_type_of_the_question(quadratic, dtype):
    learner = quadratic()
    assert learner.train(RoundStart(learner.initial().astype(dtype)), 0).vector.dtype == dtype


def test_a_correction_is_added_to_every_gradient(quadratic):
    learner = quadratic(training=TrainingConfig(local_steps=1, learning_rate=0.5))
    start, correction = learner.initial(), np.arange(16, dtype=np.float32)
    plain, pulled = (
        learner.train(
            RoundStart(start, {} if c is None else {"correction": c}, None if c is None else Variate()), 0
        ).vector
        for c in (None, correction)
    )
    np.testing.assert_allclose(pulled, plain - 0.5 * correction, atol=1e-6)


def test_noise_depends_on_the_node_and_the_round_alone(quadratic):
    def outcome(node, round_index):
        learner = quadratic(node=node, noise=1.0)
        return learner.train(RoundStart(learner.initial()), round_index).vector

    np.testing.assert_array_equal(outcome(0, 4), outcome(0, 4))
    assert not np.array_equal(outcome(0, 4), outcome(0, 5))


def test_a_node_may_be_slower_than_the_task_says(quadratic, monkeypatch):
    slept = []
    monkeypatch.setattr("p2pfl.learn.task.time", SimpleNamespace(sleep=slept.append))
    learner = quadratic(step_s=5.0, local={"step_s": 0.02})
    learner.train(RoundStart(learner.initial()), 0)
    assert slept == [0.02]


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"size": 0}, "task.size"),
        ({"condition": 0.5}, "task.condition"),
        ({"noise": -1.0}, "task.noise"),
        ({"samples": [1, 2]}, "task.samples"),
        ({"samples": [1, 0, 2]}, "task.samples"),
        ({"local": {"step_s": "long"}}, "data.step_s"),
        ({"local": {"path": "x"}}, "data.path"),
        ({"training": TrainingConfig(optimizer="adam")}, "training.optimizer"),
    ],
)
def test_impossible_options_are_refused(quadratic, options, key):
    with pytest.raises(UserError) as caught:
        quadratic(**options)
    assert caught.value.key == key
