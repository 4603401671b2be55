"""Nobody waits for a neighbor in quarantine: a liar that gets itself thrown out must not hold up start or end."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from core_kit import commit, exchange_as_initiator, hello, is_through, make_node, only, open_session, say, started

from p2pfl.core.events import CloseSession, Finish, RoundTrained, SessionOpened, StartRound
from p2pfl.core.limits import Fault
from p2pfl.core.messages import Done
from p2pfl.core.settings import Phase
from p2pfl.core.training import is_behind

LIAR = 2


def throw_out(node, now=0.0):
    """Enough proven faults of neighbor 2."""
    edge = node.edges[LIAR]
    effects = []
    while not edge.line.standing.is_out:
        effects += edge.exchange.blame(Fault.PAYLOAD, "no numbers", now)
    return effects + node.wake(now)


def test_the_start_waits_for_an_absent_neighbor_and_not_for_one_thrown_out():
    node = make_node(0, 1, LIAR, start_wait_s=60.0)
    effects = started(node) + open_session(node, 1)
    assert only(effects, StartRound) == []
    assert node.rounds.phase is Phase.WAITING
    assert len(only(throw_out(node, 1.0), StartRound)) == 1


def test_the_start_waits_for_no_edge_that_rests_because_it_falls_apart_again_and_again():
    node = make_node(0, 1, LIAR, start_wait_s=60.0)
    effects = started(node) + open_session(node, 1) + open_session(node, LIAR)
    for incarnation in range(1, 7):
        effects += node.edges[LIAR].exchange.resync(incarnation, "again", 0.1)
    assert len(only(effects + node.wake(0.2), StartRound)) == 1
    assert not node.edges[LIAR].line.standing.is_out
    assert only(node.handle(SessionOpened(peer=LIAR, session=2), 1.0), CloseSession)
    assert not is_behind(node.edges[LIAR], 0)
    node.handle(SessionOpened(peer=LIAR, session=3), 100.0)
    assert is_behind(node.edges[LIAR], 0)


def test_one_that_came_and_told_no_level_does_not_hold_the_start_up_once_it_is_out():
    node = make_node(0, 1, LIAR, start_wait_s=60.0, hops=2)
    effects = started(node) + open_session(node, LIAR)
    assert only(throw_out(node, 0.5) + effects, StartRound) == []
    assert len(only(open_session(node, 1, 1.0, greeting=hello(level=1)), StartRound)) == 1


def test_the_end_does_not_wait_for_one_that_is_out():
    node = make_node(0, 1, LIAR, rounds=1, closing_rounds=0, linger_s=1000.0)
    is_through(node, 1)
    effects = started(node) + open_session(node, 1)
    throw_out(node)
    exchange_as_initiator(node, effects)
    effects = commit(node, node.handle(RoundTrained(steps=1, samples=30), 1.0), 1.0)
    exchange_as_initiator(node, effects, 1.0)
    assert node.rounds.phase is Phase.LINGERING
    assert len(only(say(node, 1, Done(version=1), 2.0), Finish)) == 1


def test_one_that_has_come_back_is_waited_for_again():
    node = make_node(0, LIAR, start_wait_s=600.0)
    started(node)
    throw_out(node)
    edge = node.edges[LIAR]
    assert not is_behind(edge, 0)
    node.handle(SessionOpened(peer=LIAR, session=2), edge.line.standing.until + 1.0)
    assert is_behind(edge, 0)
