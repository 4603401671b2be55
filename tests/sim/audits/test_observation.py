"""Neighbors that put together what they see know where a local round began and where it ended."""

import numpy as np
import pytest
from audit_kit import digits_task, federation_of, learners_of

from p2pfl.learn import method_of
from sim import gradient_of, observe_simulated


def recorded(learner):
    """The rounds that a learner trains: where each begins, what its method gives to it, and where it ends."""
    rounds, train = [], learner.train

    def noted(start, index):
        local = train(start, index)
        rounds.append((start.model.copy(), dict(start.given), local.vector.copy()))
        return local

    learner.train = noted
    return rounds


@pytest.mark.long
@pytest.mark.parametrize("method", ["plain", "variate", "prox"])
@pytest.mark.parametrize("nodes", [2, 4])
def test_all_neighbors_together_know_where_each_round_began_and_ended(method, nodes):
    federation = federation_of(digits_task(), nodes, rounds=5, method=method)
    learners = learners_of(federation)
    rounds = recorded(learners[0])

    seen = observe_simulated(federation, learners, 0).rounds()

    assert len(seen) >= len(rounds) >= 5
    for one, (start, _, end) in zip(seen, rounds, strict=False):
        np.testing.assert_allclose(one.start, start, atol=1e-5)
        np.testing.assert_allclose(one.start + one.change, one.start + (end - start), atol=1e-5)


def test_what_the_learning_method_adds_to_a_gradient_is_taken_out_again():
    federation = federation_of(digits_task(), 3, rounds=5, method="variate")
    learners = learners_of(federation)
    rounds = recorded(learners[0])

    seen = observe_simulated(federation, learners, 0).rounds()

    rate, method = federation.training.learning_rate, method_of(federation)
    for one, (start, given, end) in zip(seen, rounds, strict=False):
        own = (start - end) / rate - given.get("correction", 0.0)
        told = gradient_of(one, federation.training, method, samples=learners[0].samples)
        np.testing.assert_allclose(told, own, atol=2e-4)


def test_a_lossy_compressor_blurs_what_is_seen():
    federation = federation_of(digits_task(), 3, rounds=3, compressor="q4")
    learners = learners_of(federation)
    rounds = recorded(learners[0])

    seen = observe_simulated(federation, learners, 0).rounds()[:3]

    apart = [np.linalg.norm(one.change - (end - start)) for one, (start, _, end) in zip(seen, rounds, strict=False)]
    assert min(apart) > 1e-4
    assert max(apart) < 1.0
