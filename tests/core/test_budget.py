"""Rounds that the privacy budget does not pay for: the node is through and mixes, or tries again later."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from p2pfl.core.events import Alarm, Amended, CommitRound, RoundRefused, RoundTrained, StartRound, StopRequested
from p2pfl.core.rounds import IDLE_S
from p2pfl.core.settings import Phase
from tests.invariants import check_invariants

sys.path.insert(0, str(Path(__file__).parent))
from core_kit import begun_alone, commit, make_node, only, settings

SPENT = RoundRefused(why="the budget is spent", for_good=True, planned=True)
NONE = RoundRefused(why="there is no budget", for_good=True)
LATER = RoundRefused(why="the disk refuses", for_good=False)


def beginning(**changes):
    """A node whose first round is to begin; two others have begun and are not through."""
    node = make_node(0, 1, 2, **({"rounds": 9} | changes))
    node.census.remember([1, 2], 0.0)
    assert only(begun_alone(node), StartRound)
    return node


@pytest.mark.parametrize(("event", "kind"), [(SPENT, "budget-spent"), (NONE, "no-budget")])
@pytest.mark.parametrize("when_through", ["mix", "train", "train-on"])
def test_a_node_without_a_budget_is_through_says_so_once_and_never_trains_again(event, kind, when_through):
    node = beginning(when_through=when_through)
    effects = node.handle(event, 1.0)
    assert [(alarm.kind, alarm.notice) for alarm in only(effects, Alarm)] == [(kind, event.planned)]
    assert node.termination.is_through
    assert node.rounds.training.enough(1.0) == event.why
    for turn in range(6):
        assert not only(node.wake(1.0 + turn * IDLE_S), StartRound, Alarm)
        check_invariants(node)
    assert node.rounds.phase is Phase.TRAINING


def test_what_the_disk_refuses_to_pay_for_is_tried_again_after_a_while_and_no_end_is_told():
    node = beginning()
    assert not only(node.handle(LATER, 1.0), StartRound, Alarm, CommitRound)
    assert node.deadline() <= 1.0 + IDLE_S
    assert not only(node.wake(1.0 + IDLE_S / 2), StartRound)
    assert only(node.wake(1.0 + IDLE_S), StartRound)
    assert not node.termination.is_through
    effects = node.handle(RoundTrained(steps=1, samples=30), 2.0)
    assert node.facts.rounds == 0
    commit(node, effects, 2.0)
    assert node.facts.rounds == 1


def test_more_rounds_to_do_are_no_more_budget():
    node = beginning()
    node.handle(SPENT, 1.0)
    more = Amended(neighbors=(1, 2), turns={}, settings=settings(rounds=99))
    effects = node.handle(more, 2.0)
    for turn in range(8):
        effects += node.wake(3.0 + turn)
    assert not only(effects, StartRound)
    assert node.termination.is_through


def test_a_refusal_that_comes_after_the_end_changes_nothing():
    node = beginning()
    node.handle(StopRequested(), 1.0)
    assert node.handle(SPENT, 2.0) == []
    assert node.rounds.phase is Phase.FINISHED
