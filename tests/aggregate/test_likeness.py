"""Whom to suspect: who leans the same way for twenty rounds, is far off or sends back what it got, and nobody else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from p2pfl.aggregate import Likeness
from sim import LiarSpec, Rounds, Together, WorldSpec, describe, setting_of

PEERS = (1, 2, 3, 4, 5)
SIZE = 60


def shown(rng, common, **lies):
    """What five neighbors show: a common model, and the noise of their own training; one of them something else."""
    models = {peer: common + rng.standard_normal(SIZE) for peer in PEERS}
    own = common + rng.standard_normal(SIZE)
    for name, lie in lies.items():
        models[int(name[1:])] = lie(own, models)
    return own, [models[peer] for peer in PEERS]


def looked(rounds, likeness=None, **lies):
    likeness, rng, common = likeness or Likeness(seed=1), np.random.default_rng(0), np.zeros(SIZE)
    for _ in range(rounds):
        common = common + 0.3 * rng.standard_normal(SIZE)
        likeness.look(*shown(rng, common, **lies), PEERS)
    return likeness


def kinds(likeness):
    return [(kind, peer) for kind, peer, _ in likeness.news]


def lean(_, models):
    return models[3] + 2.5


@pytest.mark.parametrize(
    ("lie", "kind"),
    [
        (lean, "looks-unlike"),
        (lambda _, models: -3 * models[3], "looks-unlike"),
        (lambda own, _: own, "sends-back"),
        (lambda own, models: np.mean([own, models[1], models[2], models[4], models[5]], axis=0), "sends-back"),
    ],
    ids=["lean", "flipped", "copied", "mean of the others"],
)
def test_after_twenty_rounds_and_not_before_it_is_named_who_lies_and_nobody_else(lie, kind):
    assert kinds(looked(19, _3=lie)) == []
    assert kinds(looked(20, _3=lie)) == kinds(looked(60, _3=lie)) == [(kind, 3)]


def test_it_is_taken_back_once_the_neighbor_looks_like_the_others():
    likeness = looked(30, _3=lean)
    assert kinds(looked(60, likeness)) == [("looks-unlike", 3), ("looks-alike", 3)]
    assert max(score.unlike for score in likeness.scores.values()) < 2.0


def test_nobody_is_judged_among_two_neighbors_or_where_all_show_the_same():
    likeness = Likeness(seed=1)
    for _ in range(50):
        likeness.look(np.zeros(SIZE), [np.ones(SIZE), np.full(SIZE, 9.0)], (1, 2))
        likeness.look(np.zeros(SIZE), [np.zeros(SIZE)] * 5, PEERS)
    assert not likeness.news
    assert not likeness.scores


def test_who_is_no_neighbor_any_more_is_forgotten_and_begins_anew():
    likeness = looked(30, _3=lean)
    likeness.forget((3,))
    assert 3 not in likeness.scores
    assert kinds(looked(19, likeness, _3=lean)) == [("looks-unlike", 3)]
    assert kinds(looked(1, likeness, _3=lean))[1:] == [("looks-unlike", 3)]


def alarms_in(attack, seed, *, rounds=24, partition="dirichlet:0.5"):
    """The alarms that stand at the end, by honest node: run in step as arrays, by the rule that real nodes have."""
    federation = describe(
        nodes=10, topology="random-regular:degree=6", rule="hampel:b=1", rounds=rounds, partition=partition, seed=seed
    )
    training = replace(federation.training, local_steps=5, closing="train", closing_rounds=2)
    world = WorldSpec(liars=None if attack is None else LiarSpec(attack=attack, nodes=(4,)))
    setting = setting_of(replace(federation, training=training), world, None, clock="in-step", device=None)
    together = Together(setting, Rounds(setting.grouped, setting.method, setting.device))
    list(together.run())
    standing = {}
    for node, mixer in enumerate(together.stage.by_rule.mixers):
        for kind, peer, _ in mixer.likeness.news if node != 4 else ():
            standing[node, peer] = kind
    victims = {low + high - 4 for low, high in federation.edges if 4 in (low, high)}
    return {key: kind for key, kind in standing.items() if kind != "looks-alike"}, victims


@pytest.mark.parametrize(
    ("attack", "kind"), [("sign-flip", "looks-unlike"), ("ipm", "looks-unlike"), ("mirror", "sends-back")]
)
def test_each_neighbor_of_a_liar_names_it_within_twenty_rounds_of_learning(attack, kind):
    found, victims = alarms_in(attack, 1)
    assert found == {(node, 4): kind for node in victims}


@pytest.mark.parametrize("seed", range(3))
def test_in_an_honest_world_with_unequal_labels_no_alarm_stays(seed):
    found, _ = alarms_in(None, seed, partition=("dirichlet:0.5", "shards:2", "dirichlet:0.2")[seed])
    assert found == {}
