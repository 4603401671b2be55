"""All rows of a node hidden together: its round is cut to a length and gets noise, whatever the learner."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from p2pfl.config import TrainingConfig
from p2pfl.config.sections import MEMBER
from p2pfl.errors import UserError
from p2pfl.learn import QuadraticTask, RoundStart, learner_for
from p2pfl.learn.privacy import UNIT, HiddenRounds, Protection, Secret, Seeded, hide_round
from tests.learn.privacy.conftest import QUIET, plan

TRAINING = TrainingConfig(local_steps=5, learning_rate=0.1)


def hidden(change, *, clip=1.0, noise=QUIET, round_index=0, chance=None):
    start = np.zeros(len(change), np.float32)
    draws = (chance or Seeded(0)).of_round(0, round_index)
    return hide_round(start, start + change, plan(TRAINING, unit=MEMBER, clip=clip, noise=noise), draws)


@pytest.mark.parametrize("length", [0.0, 0.5, 1.0, 3.0, 1e19])
def test_a_change_is_no_longer_than_the_clip_and_keeps_its_direction(length):
    change = np.full(16, length / 4, np.float32)
    found = hidden(change)
    assert np.linalg.norm(found) == pytest.approx(min(length, 1.0), rel=2e-3, abs=1e-10)
    assert np.linalg.norm(found) < 1 + 1e-10
    assert np.ptp(found) < 1e-7


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_change_that_is_not_finite_counts_as_none(wrong):
    change = np.ones(16, np.float32)
    change[3] = wrong
    np.testing.assert_array_equal(hidden(change, noise=2.0), hidden(np.zeros(16, np.float32), noise=2.0))


def test_the_noise_has_the_standard_deviation_that_was_planned():
    found = hidden(np.zeros(40_000, np.float32), clip=0.3, noise=2.0).astype(np.float64)
    low, high = stats.chi2(len(found)).ppf([1e-4, 1 - 1e-4])
    assert low < ((found / 0.6) ** 2).sum() < high


def test_noise_of_each_node_is_n_times_as_much_in_the_mean_as_noise_of_a_center():
    """The variance of the mean is of order 1/n where nodes hide themselves, and 1/n^2 where a center hides them."""
    size = 4000

    def variances(nodes):
        chance = Seeded(7)
        own = [hidden(np.zeros(size, np.float32), noise=1.0, round_index=node, chance=chance) for node in range(nodes)]
        central = chance.of_round(nodes, 10**6).noise(size) / UNIT / nodes
        return np.mean(own, axis=0).var(), central.var()

    few, many = variances(4), variances(64)
    for found, order in zip(few, (4, 16), strict=True):
        assert found == pytest.approx(1 / order, rel=0.1)
    for found, order in zip(many, (64, 64**2), strict=True):
        assert found == pytest.approx(1 / order, rel=0.1)


def quadratic(context, *, unit=MEMBER, chance=None, noise=0.5):
    protection = Protection(
        plan_for=lambda _: plan(TRAINING, unit=unit, clip=0.25, noise=noise), chance=chance or Seeded(0)
    )
    return learner_for(QuadraticTask(), context(node=1, nodes=4), TRAINING, protection=protection)


def test_a_task_without_torch_is_hidden_too(context):
    plain = learner_for(QuadraticTask(), context(node=1, nodes=4), TRAINING)
    quiet, noisy = quadratic(context, noise=QUIET), quadratic(context)
    begun = RoundStart(plain.initial())
    expected, found = plain.train(begun, 0), quiet.train(begun, 0)
    assert np.linalg.norm(expected.vector) > 0.25
    np.testing.assert_allclose(found.vector, expected.vector * 0.25 / np.linalg.norm(expected.vector), rtol=2e-3)
    assert found.loss == expected.loss
    assert not np.array_equal(noisy.train(begun, 0).vector, found.vector)
    assert (noisy.size, noisy.samples, noisy.measures) == (plain.size, plain.samples, plain.measures)
    assert noisy.plan.unit == MEMBER
    assert noisy.local_state() == {}


def test_a_secret_one_tells_no_figure(context):
    mine = quadratic(context, chance=Secret())
    assert np.isnan(mine.train(RoundStart(mine.initial()), 0).loss)
    assert mine.evaluate(mine.initial(), "local") is mine.evaluate(mine.initial(), "test") is None


def test_single_rows_of_such_a_task_cannot_be_hidden(context):
    with pytest.raises(UserError, match=r"privacy\.unit: the task has its own learner"):
        quadratic(context, unit="record")


def test_a_torch_round_is_cut_as_a_whole(protected, learner):
    rng = np.random.default_rng(0)
    data = ((rng.standard_normal((20, 4)).astype(np.float32), rng.integers(0, 3, 20)), None)
    training = replace(TRAINING, batch_size=4)
    mine = protected(data=data, training=training, how={"unit": MEMBER, "noise": QUIET, "clip": 0.01})
    begun = RoundStart(mine.initial())
    change = mine.train(begun, 0).vector - begun.model
    plain = learner(data=data, training=training).train(begun, 0).vector - begun.model
    assert np.linalg.norm(change) == pytest.approx(0.01, rel=2e-3)
    assert np.dot(change, plain) == pytest.approx(np.linalg.norm(change) * np.linalg.norm(plain), rel=1e-4)
    assert mine.steps_with(20) == mine.train(begun, 0).steps == 5


def test_a_kept_optimizer_that_ends_in_no_number_is_hidden_as_well(protected):
    """A round that fails is told to all, and that one row was large has no noise."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((20, 4)).astype(np.float32)
    inputs[7] = 1e25
    training = replace(TRAINING, optimizer="adam", keep_optimizer=True, batch_size=20)
    how = {"unit": MEMBER, "noise": QUIET, "clip": 0.01}
    mine = protected(data=((inputs, rng.integers(0, 3, 20)), None), training=training, how=how)
    begun, kept = RoundStart(mine.initial()), mine.local_state()
    assert np.array_equal(mine.train(begun, 0).vector, begun.model)
    assert all(np.array_equal(value, kept[name]) for name, value in mine.local_state().items())


def test_a_model_that_counts_rows_in_whole_numbers_is_refused():
    """No noise hides them, and an exported model has them."""
    counting = SimpleNamespace(local_state=lambda: {"seen": np.array([152, 168]), "n.num_batches_tracked": np.array(7)})
    with pytest.raises(UserError, match="integer tensors get no noise") as caught:
        HiddenRounds(counting, None, 0)
    assert caught.value.value == "seen"
