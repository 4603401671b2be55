"""Methods that remember, robust rules and liars as arrays: beside the exact simulator, and by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from p2pfl.aggregate import Neighborhood, make_rule
from p2pfl.errors import UserError
from p2pfl.learn import RoundStart
from sim import LiarSpec, Rounds, Together, World, WorldSpec, describe, load_learners, setting_of, simulate


def federation(nodes=8, rounds=8, method="plain", **options):
    return describe(nodes=nodes, rounds=rounds, method=method, topology="random-regular:degree=4", **options)


def stage_of(asked, world=None):
    setting = setting_of(asked, world or WorldSpec(), None, clock="in-step", device=None)
    return setting, Together(setting, Rounds(setting.grouped, setting.method, setting.device)).stage


@pytest.mark.parametrize("method", ["momentum:mu=0.5", "outer:momentum=0.3,rate=0.7", "prox:mu=0.05"])
def test_a_method_learns_as_in_the_exact_simulator(method):
    asked = federation(nodes=12, rounds=12, method=method, partition="shards:2")
    exact, arrays = (simulate(asked, references=False, arrays=arrays) for arrays in (False, True))
    plain = simulate(replace(asked, training=replace(asked.training, method="plain")), references=False, arrays=True)
    assert arrays.accuracy.mean == pytest.approx(exact.accuracy.mean, abs=0.02)
    assert arrays.consensus_distance != plain.consensus_distance


@pytest.mark.parametrize("done", [2, 9])
@pytest.mark.parametrize(
    "changes", [{"momentum": 0.5}, {"logit_adjust": 1.0}, {"closing": "train", "momentum": 0.9, "logit_adjust": 0.5}]
)
def test_a_round_with_momentum_an_adjusted_loss_or_closing_is_that_of_the_nodes_own_learner(changes, done):
    asked = federation(partition="shards:2", compressor="none")
    asked = replace(asked, training=replace(asked.training, closing_rounds=3, **changes))
    _, run = stage_of(asked)
    learner = load_learners(asked)[5]
    closing = done - 7 if "closing" in changes and done > 7 else 0
    wanted = learner.train(RoundStart(learner.initial(), closing=closing), done)
    models = torch.from_numpy(learner.initial().copy())[None]
    run.train(np.array([5]), np.array([done]), models, None)
    assert run.train.how == "written-out products"
    np.testing.assert_allclose(models[0], wanted.vector, atol=1e-5)
    assert run.train.losses[5] == pytest.approx(wanted.loss, rel=1e-5)


def test_closing_rounds_that_train_end_as_in_the_exact_simulator_and_are_refused_apart():
    asked = federation(rule="hampel:b=1", nodes=10, partition="iid")
    asked = replace(asked, training=replace(asked.training, closing="train", closing_rounds=5, when_through="mix"))
    exact = simulate(asked, references=False)
    together = simulate(asked, arrays=True, clock="in-step")
    assert [node.rounds for node in exact.nodes] == [node.rounds for node in together.nodes] == [13] * 10
    assert together.accuracy.mean == pytest.approx(exact.accuracy.mean, abs=0.02)
    with pytest.raises(UserError, match=r"training.closing.*in-step"):
        simulate(replace(asked, gossip=replace(asked.gossip, rule="mean")), arrays=True)


def test_in_step_momentum_is_the_recursion_of_its_paper():
    asked = federation(method="momentum:mu=0.5", compressor="none")
    setting, run = stage_of(asked)
    training = setting.federation.training
    drift, kept = 0.5 / (training.learning_rate * setting.steps[:, None]), np.zeros((8, setting.size), np.float32)
    run.train = lambda *round: round[2].sub_(round[3] + 1.0)
    last = run.x.numpy().copy()
    for _ in range(3):
        now = run.x.numpy().copy()
        given, kept = kept, 0.5 * kept + (last - now) * drift
        last = now
        list(run.run(1, 0))
        np.testing.assert_allclose(run.memory.vectors["momentum"], kept, rtol=1e-4, atol=1e-6)
    assert np.abs(given).max() > 0


def test_in_step_each_node_mixes_its_neighbors_by_the_rule():
    setting, run = stage_of(federation(rule="hampel:b=1", compressor="none"))
    own = torch.from_numpy(np.random.default_rng(0).normal(size=run.x.shape).astype(np.float32))
    run.x = own.clone()
    list(run.run(0, 1))
    share = setting.samples / 5
    for node in range(8):
        peers = sorted({a + b - node for a, b in setting.federation.edges if node in (a, b)})
        weights = np.minimum(share[node], share[peers]) / setting.samples[node]
        around = Neighborhood(
            own=own[node].numpy(),
            others=[own[peer].numpy() for peer in peers],
            weights=weights,
            peers=tuple(peers),
        )
        np.testing.assert_allclose(run.x[node].numpy(), make_rule("hampel:b=1").mix(around).model, rtol=1e-6)


def test_under_a_rule_nodes_learn_beside_a_liar_as_in_the_exact_simulator():
    world = World(liars={"nodes": ["node3"], "attack": "sign-flip:4"})
    asked = federation(nodes=10, rule="hampel:b=1")
    exact = simulate(asked, world=world, references=False)
    arrays = simulate(asked, world=world, references=False, arrays=True, clock="in-step")
    assert [one.accuracy for one in arrays.nodes] == pytest.approx([one.accuracy for one in exact.nodes], abs=0.04)
    assert arrays.byzantine == exact.byzantine == ["node3"]
    assert arrays.attack == exact.attack
    assert arrays.accuracy.min == min(one.accuracy for one in arrays.nodes if one.name != "node3")


def test_a_liar_shows_each_neighbor_what_its_attack_says():
    world = WorldSpec(liars=LiarSpec(nodes=(3,), attack="sign-flip:4"))
    setting, run = stage_of(federation(rule="hampel:b=1", compressor="none"), world)
    run.x = torch.from_numpy(np.random.default_rng(0).normal(size=run.x.shape).astype(np.float32))
    wanted = -4.0 * run.x[3].numpy()
    list(run.run(0, 1))
    peers = {a + b - 3 for a, b in setting.federation.edges if 3 in (a, b)}
    assert run.by_rule.lies.shown.keys() == {(3, peer) for peer in peers}
    for shown in run.by_rule.lies.shown.values():
        np.testing.assert_allclose(shown, wanted, rtol=1e-4, atol=1e-4)
