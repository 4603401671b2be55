"""Schedules in whole federations: they mix as the theory says, cost what their rounds use, and bear a slow link."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from p2pfl.core.messages import Reply, Request
from p2pfl.learn.interface import LocalRound
from sim.network import Network
from sim.worlds.model import LinkSpec, SlowNodes

sys.path.insert(0, str(Path(__file__).parent))
from world_kit import StillLearner, make_world


def hypercube(nodes):
    """In round t each node meets the one whose number differs in bit t."""
    bits = range((nodes - 1).bit_length())
    return nodes, tuple(tuple((i, i ^ 1 << bit) for i in range(nodes) if not i >> bit & 1) for bit in bits)


def round_robin(nodes):
    """In a period every node meets every other once; `nodes` is even."""
    rounds = []
    for t in range(nodes - 1):
        circle = [0, *((t + k) % (nodes - 1) + 1 for k in range(nodes - 1))]
        pairs = zip(circle[: nodes // 2], reversed(circle[nodes // 2 :]), strict=True)
        rounds.append(tuple(sorted((min(pair), max(pair)) for pair in pairs)))
    return nodes, tuple(rounds)


SCHEDULES = {"hypercube": hypercube(8), "round-robin": round_robin(8)}
ALIKE = {node: 0.05 + 0.001 * node for node in range(8)}


def farthest(world, target):
    return max(np.abs(host.engine.state.model - target).max() for host in world.hosts)


@pytest.mark.long
@pytest.mark.parametrize("graph", SCHEDULES.values(), ids=SCHEDULES)
def test_all_end_at_the_weighted_mean_without_a_resync_and_hardly_stale(graph):
    world = make_world(graph, 1, link=LinkSpec(), compressor="none", round_s=ALIKE, rounds=40)
    target = world.oracle.mean()
    world.go(until_s=60.0)
    assert all(host.finished for host in world.hosts)
    assert farthest(world, target) < 1e-3
    edges = [edge for host in world.hosts for edge in host.core.edges.values()]
    assert all(edge.exchange.record.resyncs == 0 for edge in edges)
    assert max(edge.exchange.weighing.staleness_max for edge in edges) <= 2
    assert not any(host.alarms for host in world.hosts)


@pytest.mark.long
@pytest.mark.parametrize("graph", SCHEDULES.values(), ids=SCHEDULES)
def test_a_round_costs_what_its_own_edges_cost_not_what_the_union_would(graph, monkeypatch):
    """One exchange for each end of each active edge at most, and once one for each edge that holds a session."""
    models, send = [], Network.send

    def counted(self, source, target, session, message):
        models.append(isinstance(message, Request | Reply))
        send(self, source, target, session, message)

    monkeypatch.setattr(Network, "send", counted)
    world = make_world(graph, 1, link=LinkSpec(), compressor="none", round_s=ALIKE, rounds=40)
    world.go(until_s=60.0)
    ticks = max(host.core.facts.version for host in world.hosts)
    least = min(host.core.facts.version for host in world.hosts)
    active = sum(map(len, graph[1])) / len(graph[1])
    assert least >= 50
    assert active * least <= sum(models) / 2 <= 2 * active * ticks + len(world.plan.edges)


@pytest.mark.long
def test_nodes_of_very_different_speed_reach_the_weighted_mean():
    """Whoever is a hundred rounds ahead is in other rounds of the schedule, and every wish is met."""
    samples = [100, 60, 80, 120, 90, 70, 110, 100]
    speeds = {node: 0.01 * 1.9**node for node in range(8)}
    plan = {"compressor": "none", "samples": samples, "round_s": speeds}
    world = make_world(round_robin(8), 2, link=LinkSpec(), rounds=10**6, **plan)
    target = world.oracle.mean()
    world.go(until_s=20.0)
    assert world.hosts[0].core.facts.version > 10 * world.hosts[7].core.facts.version
    assert farthest(world, target) < 1e-3


@pytest.mark.long
def test_a_node_behind_a_slow_link_does_not_drive_the_federation_apart():
    """All its neighbors wait for it at once: were each offered half of its model, it would be thrown ever further."""
    plan = {"compressor": "none", "samples": [100] * 8, "round_s": dict.fromkeys(range(8), 0.02)}
    far = (SlowNodes(nodes=(0,), far_s=0.3),)
    world = make_world(round_robin(8), 0, link=LinkSpec(), slow=far, rounds=10**6, start_wait_s=9.0, **plan)
    target = world.oracle.mean()
    world.go(until_s=12.0)
    assert farthest(world, target) < 0.1


@pytest.mark.long
def test_a_node_that_lost_its_disk_joins_in_a_schedule_too():
    world = make_world(hypercube(8), 3, link=LinkSpec(), compressor="none", round_s=ALIKE, rounds=10**6)
    start = world.oracle.total()
    world.go(until_s=2.0)
    world.crash(5, amnesia=True)
    world.restart(5)
    world.go(until_s=6.0)
    assert [alarm.kind for alarm in world.hosts[5].alarms].count("joined") == 1
    np.testing.assert_allclose(world.oracle.total(), start + world.oracle.booked, rtol=1e-9)
    assert farthest(world, world.oracle.mean()) < 1e-3


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
