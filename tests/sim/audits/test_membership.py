"""The likelihood ratio tells members from others where models remember, and only there."""

from dataclasses import replace

import numpy as np
import pytest
from audit_kit import digits_task, federation_of

from p2pfl.learn import DataSets, TensorSamples
from sim import Scene, attack_each, attack_members, halves, judge, likelihood_ratios


def told(lift, shadows=12, rows=200, seed=0):
    """Confidences of rows that differ much from each other, `lift` standard deviations higher for members."""
    rng = np.random.default_rng(seed)
    members = halves(shadows, rows, seed)
    return rng.normal(0, 5, rows) + rng.normal(0, 1, (shadows, rows)) + lift * members, members


def test_rows_that_models_remember_are_found():
    found = attack_each(*told(4.0))

    assert found.auc > 0.97
    assert found.tpr > 0.7


def test_who_knows_nothing_guesses():
    found = attack_each(*told(0.0))

    assert found.auc == pytest.approx(0.5, abs=0.03)
    assert found.tpr == pytest.approx(0.01, abs=0.015)


def test_ratios_are_those_of_the_paper_where_there_are_few_shadows():
    """Section VI-C: the logarithm of the ratio of two Gaussian densities, whose spread all rows share."""
    values, members = told(2.0, shadows=12, rows=3)
    target, expected = np.array([0.3, -1.0, 4.0]), np.zeros(3)
    for flags, sign in ((members, 1), (~members, -1)):
        means = np.array([values[flags[:, row], row].mean() for row in range(3)])
        apart = np.concatenate([values[flags[:, row], row] - means[row] for row in range(3)])
        spread = np.sqrt((apart**2).sum() / (len(apart) - 3))
        expected += sign * (-(((target - means) / spread) ** 2) / 2 - np.log(spread))
    assert likelihood_ratios(target, values, members) == pytest.approx(expected)


def test_the_area_under_the_curve_counts_ties_half():
    found = judge(np.array([1.0, 2.0, 2.0, 3.0]), np.array([False, True, False, True]))

    assert found.auc == pytest.approx(3.5 / 4)
    with pytest.raises(ValueError, match="members and others"):
        judge(np.ones(3), np.ones(3, dtype=np.bool_))


def test_halves_have_equally_many_rows_each():
    members = halves(5, 25, seed=3)

    assert members.sum(axis=1).tolist() == [12] * 5
    assert len({row.tobytes() for row in members}) == 5


@pytest.mark.long
def test_members_of_a_small_node_are_found_without_any_layer():
    federation = federation_of(digits_task(), 2, rounds=2, local_steps=40, batch_size=8, learning_rate=0.5)
    task = federation.task.given
    data = [DataSets(train=TensorSamples(*task.data(node)[0]), test=None) for node in contexts(2)]
    scene = Scene(federation=federation, task=task, data=data, victim=0)

    found = attack_members(scene, federation, shadows=10)

    assert found.auc > 0.7


def test_where_time_is_short_it_says_so():
    federation = federation_of(digits_task(), 2, rounds=1)
    task = federation.task.given
    data = [DataSets(train=TensorSamples(*task.data(node)[0]), test=None) for node in contexts(2)]
    scene = replace(Scene(federation=federation, task=task, data=data, victim=0), notes=())

    assert "time for 1 copies only" in attack_members(scene, federation, shadows=8, limit_s=0)


def contexts(nodes):
    federation = federation_of(digits_task(), nodes)
    scene = Scene(federation=federation, task=federation.task.given, data=[None] * nodes, victim=0)
    return [scene._context(index) for index in range(nodes)]
