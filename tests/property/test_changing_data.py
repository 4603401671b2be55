"""Data that grow and shrink while nodes learn: sum n_i x_i changes by (n' - n) x at the commits that say so, only."""

from __future__ import annotations

import sys
from itertools import count
from math import ceil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.aggregate import make_rule
from p2pfl.core.events import CommitRound, Mix
from sim.worlds.model import LinkSpec

sys.path.insert(0, str(Path(__file__).parent))
from test_conservation import FAULTS, LINKS, schedule
from world_kit import GRAPHS, KINDS, StillLearner, few, make_world

FOUR = (4, (((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)),))
"""All four are neighbors: enough for a rule that bears one liar."""
RULES = ("trimmed-mean:b=1", "median:b=1", "hampel:b=1")
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
        self.took = 0
        """Commits with another n."""
        self.mixed = 0
        for host in world.hosts:
            host.machine.watch = self

    def before(self, index, operation):
        self.oracle.before(index, operation)
        state = self.world.hosts[index].engine.state
        self.then = state.samples, state.rounds, state.channels.copy(), self.oracle.booked

    def after(self, index, operation):
        self.oracle.after(index, operation)
        self.mixed += isinstance(operation, Mix)
        if not isinstance(operation, CommitRound):
            return
        (n, rounds, x, booked), state = self.then, self.world.hosts[index].engine.state
        counts = self.world.plan.learners[index].counts
        wanted = max(ceil(operation.least_samples), counts[rounds % len(counts)]) if operation.trained else n
        assert state.samples == wanted
        assert state.channels.tobytes() == x.tobytes()
        scale = max(1.0, np.abs(self.oracle.booked).max()) + (n + wanted) * np.abs(x).max()
        assert np.abs(self.oracle.booked - booked - (wanted - n) * x).max() <= 1e-14 * scale
        self.took += wanted != n


def changing_world(graph, seed, counts, rule=None, **others):
    """Node k has the n of `counts[k]`, or of those before it where there are not so many."""
    turns = count()

    def learner(model, samples):
        own = counts[next(turns) % len(counts)]
        return CurrentFederation(model, samples, own)

    mixing = None if rule is None else make_rule(rule)
    world = make_world(graph, seed, learner=learner, rule=mixing, linger_s=1e6, **others)
    return world, Ledger(world)


def run_checking(world, until_s):
    start = world.oracle.total()
    while world.kernel.now < until_s and world.kernel.step():
        drift = world.oracle.drift(start)
        assert drift < 1e-12, f"drift {drift} at {world.kernel.now}"
        assert world.oracle.replicas_agree()


@pytest.mark.long
@few(3)
@given(
    place=st.sampled_from([(graph, None) for graph in GRAPHS] + [(FOUR, rule) for rule in RULES]),
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
    run_checking(world, 3.0)


@pytest.mark.long
@pytest.mark.parametrize("rule", [None, "trimmed-mean:b=1"])
def test_in_such_a_world_n_does_change_nodes_restart_and_rules_mix(rule):
    """So that the property above is about something."""
    world, ledger = changing_world(FOUR, 3, [[10, 300, 1], [40]], rule, link=LinkSpec())
    schedule(world, [(0.3, "crash", 0, 0.1, 1)])
    run_checking(world, 0.7)
    assert world.hosts[0].starts == 2
    assert ledger.took > 5
    assert (ledger.mixed > 5) == (rule is not None)


def test_a_node_that_crashes_comes_back_with_the_n_of_its_last_durable_round():
    world, _ = changing_world("pair", 3, [[10, 300, 120], [40]])
    run_checking(world, 0.6)
    state = world.hosts[0].engine.state
    world.crash(0, kept=100)
    world.restart(0)
    restored = world.hosts[0]
    assert (restored.engine.state.samples, restored.engine.state.rounds) == (state.samples, state.rounds)
    assert restored.core.facts.samples == state.samples
