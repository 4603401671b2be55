"""Members come and go and edges with them, while messages are lost and nodes crash: sum n_i x_i is what was booked."""

from __future__ import annotations

import random
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sim.worlds.model import LinkSpec, Spread

sys.path.insert(0, str(Path(__file__).parent))
from changing_kit import OPERATIONS, SHAPES, ChangingWorld, charters
from test_conservation import FAULTS, LINKS, relative_drift


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


@settings(
    max_examples=settings.default.max_examples // 2,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
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
    while not world.in_force and world.kernel.now < 40.0:
        assert world.step()
    assert world.in_force
    assert relative_drift(world, start) < 1e-12
    assert world.oracle.members == set(world.charters[-1].members)


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


@pytest.mark.parametrize("seed", range(3))
def test_without_faults_no_half_of_an_exchange_is_lost_when_edges_go(seed):
    """Whoever hears of it first: what is on its way on an edge that goes comes to its end at both."""
    link = LinkSpec(latency_s=Spread(low=0.02, high=0.02))
    world = ChangingWorld(many_changes(seed), seed=seed, link=link, hasty=True)
    start = world.oracle.total()
    run_checking(world, 5.0, start)
    assert world.in_force
    assert not np.any(world.oracle.lost)
