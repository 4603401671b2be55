"""Whatever is lost, the control variates of those who live sum to zero again, and all end at the true optimum.

C_i is made of flows on edges, opposite at both ends. An edge that begins anew drops its flow at both; a node that
starts without its flows begins a new life, and who hears of it drops what it holds of that edge, session or not.
"""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from world_kit import GRAPHS, OpenPlan, OpenWorld, core_settings, few, quadratic_learners

from p2pfl.compress import make_compressor
from p2pfl.methods import Variate
from sim import LinkSpec
from tests.engine.pair import correction

BETA = 0.1
EVENTS_BETWEEN_LOOKS = 7
SLOW = {0: 0.2, 1: 0.5, 2: 0.3, 3: 0.3}
"""Seconds of a node's rounds, for worlds in which one waits."""
FAULTS = st.lists(
    st.tuples(
        st.floats(0.1, 3.0),
        st.sampled_from(["cut", "crash", "wipe", "clone", "snapshot"]),
        st.integers(0, 1000),
        st.floats(0.01, 1.0),
        st.integers(0, 3),
    ),
    max_size=8,
)
LINKS = st.builds(
    LinkSpec,
    jitter_s=st.sampled_from([0.0, 0.01]),
    drop=st.sampled_from([0.0, 0.05]),
    redial_s=st.sampled_from([0.01, 0.3]),
)


def make_world(graph, *, seed, compressor="none", link=None, rounds=10**6, round_s=None, **changes):
    """Nodes of unequal n, each with its own optimum and curvature; the world and the true weighted optimum."""
    nodes, rounds_of_edges = GRAPHS[graph]
    edges = tuple(sorted({edge for edges in rounds_of_edges for edge in edges}))
    samples = [int(n) for n in np.random.default_rng(seed).integers(50, 200, nodes)]
    learners = quadratic_learners(samples, rounds=rounds)
    world = OpenWorld(
        OpenPlan(
            edges=edges,
            schedule=rounds_of_edges if len(rounds_of_edges) > 1 else (),
            learners=learners,
            settings=core_settings(**({"rounds": rounds, "linger_s": 1e6} | changes)),
            compressor=make_compressor(compressor),
            dtype=np.float64,
            method=Variate(BETA),
            links=link or LinkSpec(),
            seed=seed,
            default_round_s=0.05,
            round_s={0: 0.03, 1: 0.12} if round_s is None else round_s,
        )
    )
    return world, learners[0].optimum()


def copied(disk):
    """What is on it, without what was not flushed. Nobody writes to the entries."""
    other = copy.copy(disk)
    other._flushed, other._buffered = list(disk._flushed), []
    return other


def come_back(world, index, disk):
    """Start again, from another disk if one is given: an older one is what a second copy of the folder would hold."""
    host = world.hosts[index]
    if host.alive:
        return
    if disk is not None:
        host.engine.store = copied(disk)
    world.restart(index)


def without_replicas(world, index):
    """What a node finds that writes snapshots alone: no replica, no flow."""
    host = world.hosts[index]
    if host.alive:
        return
    state = host.engine.store.recover(host.engine.plan.codecs, host.engine.plan.method)
    state.begin_lifetime(10**9 + host.starts)
    host.engine.store.checkpoint(state)
    world.restart(index)


def happen(world, kind, which, length_s, kept):
    """One fault, now."""
    if kind == "cut":
        world.network.cut(world.plan.edges[which % len(world.plan.edges)])
        return
    index = which % len(world.hosts)
    host, now = world.hosts[index], world.kernel.now
    if not host.alive:
        return
    if kind == "clone":  # lives on for a while, then the copy that was made of it now takes its place
        disk = copied(host.engine.store)
        world.kernel.at(now + length_s, partial(world.crash, index, kept=kept))
        world.kernel.at(now + 1.1 * length_s, partial(come_back, world, index, disk))
        return
    world.crash(index, amnesia=kind == "wipe", kept=kept)
    back = without_replicas if kind == "snapshot" else partial(come_back, disk=None)
    world.kernel.at(now + length_s, partial(back, world, index))


def variates(world):
    """Each node's n C, (nodes, d)."""
    states = [host.engine.state for host in world.hosts]
    return np.array([state.samples * correction(state, BETA) for state in states])


def is_settled(world):
    """Nothing is pending anywhere, and every edge has greeted."""
    edges = [edge for host in world.hosts for edge in host.core.edges.values()]
    alive = all(host.alive for host in world.hosts)
    return alive and all(
        edge.is_open and edge.exchange.record.pending is None and not edge.exchange.busy for edge in edges
    )


def run_to_the_optimum(world, optimum, limit_s=120.0):
    """Go on without faults, checking the sum whenever nothing is pending; how far the nodes' mean ends from it."""
    checked, away, until_s = 0, np.inf, world.kernel.now
    while world.kernel.now < limit_s and away > 1e-4:
        until_s += 2.0
        while world.kernel.now < until_s and all(world.kernel.step() for _ in range(EVENTS_BETWEEN_LOOKS)):
            if is_settled(world):
                rows = variates(world)
                assert np.abs(rows.sum(axis=0)).max() <= 1e-12 * max(1.0, np.abs(rows).max())
                checked += 1
        away = float(np.abs(world.oracle.mean() - optimum).max())
    assert checked, "the edges never came to rest"
    return away


@few(10)
@given(
    graph=st.sampled_from(["pair", "path", "triangle", "ring", "star", "turning-triangle"]),
    seed=st.integers(0, 2**32 - 1),
    link=LINKS,
    faults=FAULTS,
)
def test_after_any_losses_the_variates_sum_to_zero_and_the_true_optimum_is_reached(graph, seed, link, faults):
    world, optimum = make_world(graph, seed=seed, link=link)
    for at_s, *fault in faults:
        world.kernel.at(at_s, partial(happen, world, *fault))
    world.go(until_s=5.5, finish=False)
    world.network.quiet = True
    for host in world.hosts:
        assert host.alive
    assert run_to_the_optimum(world, optimum) <= 1e-4


@pytest.mark.parametrize("wiped", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_neighbor_whose_link_to_a_wiped_node_never_returns_drops_its_half_of_the_flow(wiped, monkeypatch):
    """It hears of the new life from others: here the ring has two ways, and one is cut for good with the crash."""
    world, _ = make_world("ring", seed=5, round_s=SLOW)
    world.go(until_s=3.0, finish=False)
    other = {1: 0, 2: 3}[wiped]
    edge = (min(wiped, other), max(wiped, other))
    assert world.hosts[other].engine.state.edges[wiped].kept["flow"].any()
    world.crash(wiped, amnesia=True)
    monkeypatch.setattr(world.network._separations, "divide", lambda link: link == edge)
    world.restart(wiped)
    world.go(until_s=20.0, finish=False)
    assert world.hosts[other].engine.state.edges[wiped].kept == {}
    assert world.hosts[wiped].engine.state.edges[other].kept == {}
    alive_edges = [e for e in world.plan.edges if e != edge]
    for a, b in alive_edges:
        assert world.hosts[a].core.edges[b].is_open
    total = variates(world).sum(axis=0)
    flying = [e for e in alive_edges if world.hosts[e[0]].core.edges[e[1]].exchange.record.pending is not None]
    assert flying or np.abs(total).max() < 1e-9


def test_a_member_that_dies_goes_on_being_represented_and_the_sum_waits_for_it():
    """Silence drops nothing: the flows of its neighbors still hold what its data asked for."""
    world, _ = make_world("ring", seed=5, round_s=SLOW)
    world.go(until_s=3.0, finish=False)
    world.crash(2)
    before = [world.hosts[peer].engine.state.edges[2].kept["flow"].copy() for peer in (1, 3)]
    world.go(until_s=30.0, finish=False)
    after = [world.hosts[peer].engine.state.edges[2].kept["flow"] for peer in (1, 3)]
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)
