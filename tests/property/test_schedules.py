"""Schedules in whole federations: they mix as the theory says, cost what their rounds use, and bear a slow link."""

from __future__ import annotations

import numpy as np
from world_kit import StillLearner, make_world

from p2pfl.learn import LocalRound
from sim import LinkSpec


def hypercube(nodes):
    """In round t each node meets the one whose number differs in bit t."""
    bits = range((nodes - 1).bit_length())
    return nodes, tuple(tuple((i, i ^ 1 << bit) for i in range(nodes) if not i >> bit & 1) for bit in bits)


def farthest(world, target):
    return max(np.abs(host.engine.state.model - target).max() for host in world.hosts)


def test_one_period_of_closing_rounds_averages_exactly_where_the_schedule_does():
    """However fast each node trains: in the closing rounds each pair exchanges once, when both are there."""
    speeds = {node: 0.01 * 1.7**node for node in range(8)}
    plan = {"compressor": "none", "samples": [100] * 8, "round_s": speeds}
    world = make_world(hypercube(8), 4, link=LinkSpec(), rounds=1, closing_rounds=3, **plan)
    target = world.oracle.mean()
    world.go(until_s=30.0)
    assert all(host.finished for host in world.hosts)
    assert farthest(world, target) < 1e-5


def test_one_period_averages_exactly_although_nodes_that_train_for_a_time_have_done_different_numbers_of_rounds(
    monkeypatch,
):
    chance = np.random.default_rng(5)

    def wander(self, start, round_index):
        vector = start.model + chance.normal(size=start.model.shape)
        return LocalRound(vector=vector, steps=1, learning_rate=0.0, samples=self.samples, loss=0.0)

    monkeypatch.setattr(StillLearner, "train", wander)
    speeds = {node: 0.05 * 1.1**node for node in range(8)}
    plan = {"compressor": "none", "samples": [100] * 8, "round_s": speeds}
    world = make_world(hypercube(8), 5, link=LinkSpec(), rounds=None, time_s=2.0, closing_rounds=3, **plan)
    world.go(until_s=30.0)
    assert all(host.finished for host in world.hosts)
    assert len({host.core.facts.version % 3 for host in world.hosts}) == 3
    assert farthest(world, world.oracle.mean()) < 1e-5
