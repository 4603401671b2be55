"""Members come and go and edges with them, while messages are lost and nodes crash: sum n_i x_i is what was booked."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import count
from math import ceil

import numpy as np
import pytest
from changing_kit import OPERATIONS, SHAPES, ChangingWorld, charters, graph
from drawn_worlds import RULES, draw_changing
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from oracle import checked
from test_conservation import FAULTS, LINKS, relative_drift, schedule
from test_flows import EVENTS_BETWEEN_LOOKS, correction
from world_kit import GRAPHS, KINDS, StillLearner, few, make_world, quadratic_learners

from p2pfl.aggregate import make_rule
from p2pfl.core import CommitRound
from p2pfl.core import Phase as NodePhase
from p2pfl.methods import Variate
from sim import LinkSpec, Spread


def happen(world, kind, which, length_s, kept):
    """A fault, now: of whoever is a member at that time."""
    if kind == "cut":
        edges = world.plan.all_edges
        world.network.cut(edges[which % len(edges)])
        return
    index = which % len(world.hosts)
    if world.hosts[index].alive:
        world.crash(index, kept=kept)
        world.kernel.at(world.kernel.now + length_s, partial(world.restart, index))


def run_checking(world, until_s, start):
    while world.kernel.now < until_s and world.step():
        drift = relative_drift(world, start)
        assert drift < 1e-12, f"drift {drift} at {world.kernel.now}"
        assert world.oracle.replicas_agree(amnesia=True)


@few(4)
@given(
    shape=st.sampled_from(SHAPES),
    operations=OPERATIONS,
    seed=st.integers(0, 2**32 - 1),
    link=LINKS,
    faults=FAULTS,
)
def test_the_weighted_sum_is_what_was_booked_whoever_comes_and_goes(shape, operations, seed, link, faults):
    """After every event, to 1e-12; idle edges agree bit for bit, and the newest charter is in force everywhere."""
    hasty = seed % 2 == 1
    world = ChangingWorld(charters(shape, operations), seed=seed, link=link, hasty=hasty)
    start = world.oracle.total()
    for at_s, *fault in faults:
        world.kernel.at(at_s, partial(happen, world, *fault))
    run_checking(world, 5.0, start)
    world.network.quiet = True
    members = set(world.charters[-1].members)
    while not (world.in_force and have_ended(world, world.oracle.members - members)) and world.kernel.now < 40.0:
        assert world.step()
    assert world.in_force
    assert relative_drift(world, start) < 1e-12
    assert members <= world.oracle.members
    assert have_ended(world, world.oracle.members - members)


def have_ended(world, removed):
    """Who was removed may wait a moment for a session that was cut off; two of them may keep their edge."""
    return all(world.hosts[index].core.retired for index in removed)


def many_changes(seed):
    """Five of them in three seconds, nobody removed; and the graph before."""
    chance = random.Random(seed)
    found = [
        (
            chance.uniform(0.2, 3.0),
            chance.choice(["join", "edges", "edges"]),
            chance.choice(SHAPES),
            chance.randrange(1000),
            [chance.uniform(0.0, 0.6) for _ in range(3)],
        )
        for _ in range(5)
    ]
    return charters(chance.choice(SHAPES), found)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_without_faults_no_half_of_an_exchange_is_lost_when_edges_go(seed):
    """Whoever hears of it first: what is on its way on an edge that goes comes to its end at both."""
    link = LinkSpec(latency_s=Spread(low=0.02, high=0.02))
    world = ChangingWorld(many_changes(seed), seed=seed, link=link, hasty=True)
    start = world.oracle.total()
    run_checking(world, 5.0, start)
    assert world.in_force
    assert not np.any(world.oracle.lost)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 3])
def test_no_half_is_lost_where_sessions_break_off_as_edges_go_and_come_back_soon(seed):
    link = LinkSpec(latency_s=Spread(low=0.02, high=0.02), redial_s=0.2)
    found = many_changes(seed)
    world = ChangingWorld(found, seed=seed, link=link, hasty=True)
    start = world.oracle.total()
    for charter in found[1:]:
        for edge in world.plan.all_edges:
            world.kernel.at(max(0.01, charter.at_s + min(charter.delays) - 0.02), partial(world.network.cut, edge))
    while world.kernel.now < 6.0 and world.step():
        pass
    assert world.in_force
    assert relative_drift(world, start) < 1e-12
    assert not np.any(world.oracle.lost)


SEEDS = range(6)


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_everybody_comes_to_its_end_and_no_newcomer_trains_alone_after_it(seed):
    """Changes go on into the closing rounds. Who comes when all have gone waits, as it would for a federation to be."""
    found = [replace(charter, rounds=8 if charter.at_s < 1.5 else 12) for charter in many_changes(seed)]
    world = ChangingWorld(found, seed=seed, link=LinkSpec(), closing_rounds=4, linger_s=2.0)
    alone = []
    for host in world.hosts:
        host.machine.watch = Lonely(world, alone)
    while world.kernel.now < 40.0 and world.step():
        pass
    phases = {host.core.rounds.phase for host in world.members if host.alive}
    assert phases <= {NodePhase.FINISHED, NodePhase.WAITING}
    assert any(host.finished for host in world.members)
    assert max(Counter(alone).values(), default=0) <= 2, "what was under way when the others ended, and one more"


class Lonely:
    """Notes who commits a round of training when everybody else has ended."""

    def __init__(self, world, alone):
        self.world, self.alone = world, alone

    def before(self, index, operation):
        others = [host for host in self.world.hosts if host.index != index and host.alive]
        ended = all(host.core.termination.ended_by is not None or host.finished for host in others)
        if isinstance(operation, CommitRound) and operation.trained and ended and len(others) > 1:
            self.alone.append(index)

    def after(self, index, operation):
        pass


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS[:3])
def test_the_flows_of_those_who_are_members_sum_to_zero_once_nothing_is_on_its_way(seed):
    """What an edge that goes has kept is dropped at both ends, also where one of them was removed or has crashed."""
    found = many_changes(seed)
    found += charters_after(found, leave=found[-1].members[-1])
    samples = [int(n) for n in np.random.default_rng(seed).integers(50, 200, found[-1].ever)]
    learners = quadratic_learners(samples)
    world = ChangingWorld(found, seed=seed, learners=learners, method=Variate(0.1))
    world.kernel.at(2.5, partial(happen, world, "crash", 1, 0.4, 0))
    checked = 0
    while world.kernel.now < 6.0 and all(world.step() for _ in range(EVENTS_BETWEEN_LOOKS)):
        if world.kernel.now > found[-1].at_s + 1.0 and world.settled:
            states = [host.engine.state for host in world.members]
            rows = np.array([state.samples * correction(state, 0.1) for state in states])
            assert np.abs(rows.sum(axis=0)).max() <= 1e-12 * max(1.0, np.abs(rows).max())
            assert np.abs(rows).max() > 1e-3
            checked += 1
    assert checked


def charters_after(found, *, leave):
    """One more, by which that member is removed."""
    last = found[-1]
    members = tuple(one for one in last.members if one != leave)
    edges = graph("ring", members)
    return [replace(last, at_s=3.2, members=members, retired=last.retired | {leave}, rounds_of_edges=edges)]


def hold_what_must_hold(seed, rule):
    """Simulate a drawn world whose members change; its oracle looks at each invariant after each event."""
    federation, world = draw_changing(seed)
    method = federation.training.method if rule == "mean" else "plain"
    federation = replace(
        federation,
        gossip=replace(federation.gossip, rule=rule),
        training=replace(federation.training, method=method),
    )
    report = checked(federation, world=replace(world, evaluate_every_s=5.0))
    assert not any("quarantine" in row.alarms for row in report.nodes), "nobody lies"


DRAWN = {"seed": st.integers(0, 2**32 - 1), "rule": st.sampled_from(["mean", *RULES])}
ONE_BY_ONE = settings(suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.reuse, Phase.generate])


@pytest.mark.long
@settings(ONE_BY_ONE, max_examples=40)
@given(**DRAWN)
def test_drawn_worlds_whose_members_change_keep_every_invariant(seed, rule):
    hold_what_must_hold(seed, rule)


# -- Data that grow and shrink while nodes learn: sum n_i x_i changes by (n' - n) x at the commits that say so, only.

FOUR = (4, (((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)),))
"""All four are neighbors: enough for a rule that bears one liar."""
BEARING = ("trimmed-mean:b=1", "median:b=1", "hampel:b=1")
COUNTS = st.lists(st.one_of(st.integers(1, 300), st.just(1)), min_size=1, max_size=8)


class CurrentFederation(StillLearner):
    """Its data have another n in each round: those of `counts`, over and over."""

    def __init__(self, model, samples, counts):
        super().__init__(model, samples)
        self.counts = counts

    def train(self, start, round_index):
        self.samples = self.counts[round_index % len(self.counts)]
        return super().train(start, round_index)


class Ledger:
    """Stands between the hosts and the oracle: what each commit may book is (n' - n) x, with the n' of its data."""

    def __init__(self, world):
        self.world, self.oracle = world, world.oracle
        for host in world.hosts:
            host.machine.watch = self

    def before(self, index, operation):
        self.oracle.before(index, operation)
        state = self.world.hosts[index].engine.state
        self.then = state.samples, state.rounds, state.channels.copy(), self.oracle.booked

    def after(self, index, operation):
        self.oracle.after(index, operation)
        if not isinstance(operation, CommitRound):
            return
        (n, rounds, x, booked), state = self.then, self.world.hosts[index].engine.state
        counts = self.world.plan.learners[index].counts
        wanted = max(ceil(operation.least_samples), counts[rounds % len(counts)]) if operation.trained else n
        assert state.samples == wanted
        assert state.channels.tobytes() == x.tobytes()
        scale = max(1.0, np.abs(self.oracle.booked).max()) + (n + wanted) * np.abs(x).max()
        assert np.abs(self.oracle.booked - booked - (wanted - n) * x).max() <= 1e-14 * scale


def changing_world(graph, seed, counts, rule=None, **others):
    """Node k has the n of `counts[k]`, or of those before it where there are not so many."""
    turns = count()

    def learner(model, samples):
        own = counts[next(turns) % len(counts)]
        return CurrentFederation(model, samples, own)

    mixing = None if rule is None else make_rule(rule)
    world = make_world(graph, seed, learner=learner, rule=mixing, linger_s=1e6, **others)
    return world, Ledger(world)


def run_booking(world, until_s):
    start = world.oracle.total()
    while world.kernel.now < until_s and world.kernel.step():
        drift = world.oracle.drift(start)
        assert drift < 1e-12, f"drift {drift} at {world.kernel.now}"
        assert world.oracle.replicas_agree()


@pytest.mark.long
@few(3)
@given(
    place=st.sampled_from([(graph, None) for graph in GRAPHS] + [(FOUR, rule) for rule in BEARING]),
    seed=st.integers(0, 2**32 - 1),
    link=st.tuples(LINKS, st.sampled_from(KINDS)),
    faults=FAULTS,
    counts=st.lists(COUNTS, min_size=1, max_size=4),
)
def test_the_sum_is_what_was_booked_when_n_changes_at_any_commit(place, seed, link, faults, counts):
    """Under loss, crashes and restarts, in both profiles: n is durable with the round that brought it."""
    (graph, rule), (link, compressor) = place, link
    world, _ = changing_world(graph, seed, counts, rule=rule, link=link, compressor=compressor)
    schedule(world, faults)
    run_booking(world, 3.0)


def test_a_node_that_crashes_comes_back_with_the_n_of_its_last_durable_round():
    world, _ = changing_world("pair", 3, [[10, 300, 120], [40]])
    run_booking(world, 0.6)
    state = world.hosts[0].engine.state
    world.crash(0, kept=100)
    world.restart(0)
    restored = world.hosts[0]
    assert (restored.engine.state.samples, restored.engine.state.rounds) == (state.samples, state.rounds)
    assert restored.core.facts.samples == state.samples
