"""What one neighbor may cost beyond the others is bounded; what all neighbors take alike is waited for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from p2pfl.core.limits import WAIT_BURST_S, WAIT_SHARE, Patience, pace_setter

sys.path.insert(0, str(Path(__file__).parent))
from pace_kit import Draws, PacedNode, stutters, takes

STUTTER = stutters(period_s=2.0, runs_s=0.04, takes_s=0.005)
SLACK = 0.01


def pace(answers, *, train_s, until=150.0, **changes):
    """Rounds a second, after as many seconds of settling in."""
    world = PacedNode(answers, train_s=train_s, **changes)
    world.run(until)
    return world.run(2 * until), world


@pytest.mark.parametrize("train_s", [0.04, 0.25, 2.0])
@pytest.mark.parametrize("others", [1, *(pytest.param(others, marks=pytest.mark.long) for others in (2, 5))])
def test_a_neighbor_that_stutters_costs_no_more_than_its_share(train_s, others):
    """40 ms of every 2 s took 40% of the pace of a node whose rounds take a quarter of a second."""
    equal = {peer: takes(0.005) for peer in range(1, others + 1)}
    until = 150.0 if train_s > 0.1 else 70.0  # many rounds take long
    alone, _ = pace(equal, train_s=train_s, until=until)
    beside, world = pace(equal | {9: STUTTER}, train_s=train_s, until=until)
    assert beside >= (1 - WAIT_SHARE - SLACK) * alone
    assert world.exchanges[9] > 100


def test_no_minute_costs_more_than_its_share_and_the_burst():
    world = PacedNode({1: takes(0.005), 2: STUTTER}, train_s=0.25)
    before = PacedNode({1: takes(0.005)}, train_s=0.25).run(60.0)
    lost = [60.0 * (1 - world.run(60.0 * minute) / before) for minute in range(1, 5)]
    assert lost[0] <= WAIT_BURST_S + 60.0 * WAIT_SHARE + 0.5
    assert max(lost[1:]) <= 60.0 * WAIT_SHARE + 0.5


@pytest.mark.long
def test_two_that_stutter_together_hide_not_behind_each_other():
    equal = {peer: takes(0.005) for peer in (1, 2, 3)}
    alone, _ = pace(equal, train_s=0.25)
    beside, _ = pace(equal | {8: STUTTER, 9: STUTTER}, train_s=0.25)
    assert beside >= (1 - 2 * WAIT_SHARE - SLACK) * alone


def test_neighbors_that_are_all_slow_alike_are_waited_for():
    """A round of a millisecond would outrun gossip."""
    _, world = pace({1: takes(2.0), 2: takes(1.8), 3: takes(2.2)}, train_s=0.05)
    assert all(count >= world.rounds - 1 for count in world.exchanges.values())


def test_a_single_neighbor_is_waited_for():
    """Without it the node would train alone, and there is nobody to compare it with."""
    _, world = pace({1: takes(2.0)}, train_s=0.05)
    assert world.exchanges[1] >= world.rounds - 3


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_equal_neighbors_on_a_busy_machine_are_all_waited_for(seed):
    """Exchange times that vary by a factor of twenty from one to the next are noise, not a slow neighbor."""
    draw = Draws(seed)

    def busy(asked):
        return asked + 0.005 * 20 ** draw()

    _, world = pace({1: busy, 2: busy}, train_s=0.001, until=70.0)
    assert min(world.exchanges.values()) >= 0.97 * world.rounds


@pytest.mark.long
def test_a_neighbor_that_has_recovered_is_waited_for_again():
    def answered(asked):
        return STUTTER(asked) if asked < 70.0 else asked + 0.02

    world = PacedNode({1: takes(0.02), 2: answered}, train_s=0.001)
    world.run(80.0)
    before, rounds = world.exchanges[2], world.rounds
    world.run(110.0)
    assert world.exchanges[2] - before >= world.rounds - rounds - 1


def test_a_budget_refills_by_its_share_up_to_the_burst():
    budget = Patience(longest_s=60.0)
    assert budget.left_s(0.0) == WAIT_BURST_S
    budget.book_wait(WAIT_BURST_S + 1.0, WAIT_BURST_S + 1.0, 0.0, 0.0)
    assert budget.left_s(0.0) == pytest.approx(-1.0)
    assert budget.left_s(10.0) == pytest.approx(-1.0 + 10.0 * WAIT_SHARE)
    assert budget.left_s(1e6) == WAIT_BURST_S


def test_who_sets_the_pace_is_told_where_one_costs_more_than_the_others():
    assert pace_setter({}) is None
    assert pace_setter({1: 0.2}) is None
    assert pace_setter({1: 3.0}) == 1
    assert pace_setter({1: 3.0, 2: 0.4, 3: 0.0}) == 1
    assert pace_setter({1: 12.0, 2: 11.0}) is None


def test_the_stuttering_neighbor_sets_the_pace():
    _, world = pace({1: takes(0.005), 2: STUTTER}, train_s=0.25)
    used_s = {peer: edge.service.patience.used_s(world.now) for peer, edge in world.node.edges.items()}
    assert pace_setter(used_s) == 2
    assert used_s[1] == 0.0


def test_the_time_in_a_queue_is_no_training_time():
    """Nodes of one process learn in turn: a crowd must look neither slow nor stale, and wait for nobody any longer."""

    def trained(waited_s):
        world = PacedNode({1: takes(0.01)}, train_s=1.0, waited_s=waited_s)
        world.run(60.0)
        return world.node.rounds

    alone, crowded = trained(0.0), trained(7.0)
    assert crowded.tick.training_s == pytest.approx(alone.tick.training_s) == pytest.approx(1.0)
    assert crowded.training.own_pace_s == pytest.approx(alone.training.own_pace_s, rel=0.01)
