"""Clocks that stand still, and clocks that jump by hours as after a suspend: no neighbor is blamed, no round lost.

The core is given a monotonic time: it never runs backwards. Jumps are over before the first node is through: from
then on the others are waited for by the clock, so that hours that pass there are hours that they had.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from world_kit import make_world

from p2pfl.core import Core
from sim import LinkSpec

HOUR_S = 3600.0
ROUNDS = 30
TRAIN_S = 1.4
"""While all of them train, at 0.05 s a round."""


@dataclass(frozen=True)
class Clock:
    """Shows the time of the world plus all jumps so far, less what it stood still."""

    jumps: tuple[tuple[float, float], ...] = ()
    """When, and by how much."""
    stops: tuple[tuple[float, float], ...] = ()
    """When, and for how long."""

    def shows(self, now):
        jumped = sum(by_s for at_s, by_s in self.jumps if at_s <= now)
        return now + jumped - sum(min(max(0.0, now - at_s), for_s) for at_s, for_s in self.stops)

    def when(self, shown, now):
        """The first moment, not before `now`, at which it shows at least `shown`."""
        if not self.jumps and not self.stops:
            return max(now, shown)
        early, late = now, max(now, shown) + sum(for_s for _, for_s in self.stops)
        if self.shows(early) >= shown:
            return early
        for _ in range(64):
            middle = (early + late) / 2
            early, late = (early, middle) if self.shows(middle) >= shown else (middle, late)
        return late


class Clocked(Core):
    """A core whose time is what its clock shows; `real_s` is the world's."""

    def __init__(self, clocks, **facts):
        super().__init__(**facts)
        self.clock, self.real_s = clocks.get(self.index, Clock()), 0.0

    def handle(self, event, now):
        self.real_s, shown = now, self.clock.shows(now)
        return self._route(event, shown) + Core.wake(self, shown)

    def wake(self, now):
        self.real_s = now
        return Core.wake(self, self.clock.shows(now))

    def deadline(self):
        deadline = Core.deadline(self)
        return None if deadline is None else self.clock.when(deadline, self.real_s)


def check(clocks, graph="ring"):
    world = make_world(graph, 1, link=LinkSpec(), compressor="none", round_s={0: 0.05, 1: 0.08}, rounds=ROUNDS)
    start = world.oracle.total()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sim.host.Core", partial(Clocked, clocks))
        world.go(until_s=120.0)
    assert all(host.finished for host in world.hosts)
    assert min(host.core.facts.rounds for host in world.hosts) >= ROUNDS
    alarms = {alarm.kind for host in world.hosts for alarm in host.alarms}
    assert not alarms & {"quarantine", "stopped-early", "two-places", "resync-storm", "round-failed"}
    for host in world.hosts:
        assert not any(view.faults for view in host.core.reputations(world.kernel.now).values())
    np.testing.assert_allclose(world.oracle.total(), start, rtol=1e-9)


ALL = range(4)
CASES = {
    "one jumps": {1: Clock(jumps=((0.7, 5 * HOUR_S),))},
    "one jumps as it starts": {0: Clock(jumps=((0.01, HOUR_S),))},
    "all jump at once": {index: Clock(jumps=((0.7, 5 * HOUR_S),)) for index in ALL},
    "one jumps again and again": {1: Clock(jumps=tuple((0.1 * n, HOUR_S) for n in range(1, 14)))},
    "one is ahead by days": {2: Clock(jumps=((0.0, 1e6),))},
    "one stands still": {1: Clock(stops=((0.5, 3.0),))},
    "all stand still": {index: Clock(stops=((0.5, 3.0),)) for index in ALL},
    "one stutters": {1: Clock(stops=tuple((0.2 * n, 0.1) for n in range(1, 40)))},
    "one stands still and catches up": {1: Clock(stops=((0.3, 1.0),), jumps=((1.3, 1.0),))},
}


@pytest.mark.long
@pytest.mark.parametrize("clocks", CASES.values(), ids=CASES)
def test_whatever_the_clocks_do_all_train_all_their_rounds_and_nobody_is_blamed(clocks):
    check(clocks)


@pytest.mark.long
@settings(suppress_health_check=list(HealthCheck), max_examples=10, deadline=None)
@given(
    graph=st.sampled_from(["pair", "path", "star", "turning-triangle"]),
    jumps=st.lists(st.tuples(st.integers(0, 1), st.floats(0.0, TRAIN_S), st.floats(0.0, 10 * HOUR_S)), max_size=5),
    stops=st.lists(st.tuples(st.integers(0, 1), st.floats(0.0, 4.0), st.floats(0.0, 2.0)), max_size=3),
)
@example(graph="pair", jumps=[(0, 1.0, HOUR_S), (1, 1.0, HOUR_S)], stops=[])
def test_any_jumps_and_stops_cost_nobody_a_round(graph, jumps, stops):
    def of(node, found):
        return tuple(sorted((at_s, by_s) for index, at_s, by_s in found if index == node))

    check({node: Clock(of(node, jumps), of(node, stops)) for node in (0, 1)}, graph)
