"""Who takes no part is not trained for, and is not waited for longer than it has been away."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from p2pfl.core.events import Alarm, Send, SessionClosed, StartRound
from p2pfl.core.members import bitmap
from p2pfl.core.messages import Ready
from p2pfl.core.neighbor import UNANSWERED_ROUNDS
from p2pfl.core.settings import Phase
from p2pfl.core.termination import AWAY_S, Reason

sys.path.insert(0, str(Path(__file__).parent))
from core_kit import commit, hello, is_through, make_node, only, open_session, say, started

ALL = bitmap(0b1111)
LINGER_S = 5.0


def at_its_end(*neighbors, unfinished=3, met=True, at=1.0, **changes):
    """Node 0, which has done its rounds and trains on, when it hears that all have but `unfinished`."""
    changes = {"when_through": "train-on"} | changes
    node = make_node(0, *neighbors, rounds_done=3, version=3, fresh=False, members=4, **changes)
    started(node)
    node.rounds.training.elapsed_before_s = 10.0
    for peer in neighbors:
        if met or peer != unfinished:
            greeting = hello(version=3, level=None, trained=3, begun=ALL)
            open_session(node, peer, now=0.5, greeting=greeting)
    is_through(node, *(peer for peer in neighbors if peer != unfinished), now=at)
    others = bitmap(0b1111 & ~(1 << unfinished))
    node.census.hear(neighbors[0], 0, ALL, others, at)
    return node


def lost(node, peer, now):
    node.edges[peer].exchange.busy = False  # the engine has answered
    return node.handle(SessionClosed(peer=peer, session=1), now)


def mute(node, peer, since):
    """It keeps its session, tells of rounds, and none of this node's was exchanged."""
    service = node.edges[peer].service
    service.unanswered, service.unanswered_from = UNANSWERED_ROUNDS, since


def look(node, now):
    """What the node does at the end of the round under way."""
    node.rounds.working = node.rounds.tick.is_waiting = False
    return node.wake(now)


def test_who_takes_long_for_a_round_is_away_after_three_of_them():
    node = at_its_end(1, 3, linger_s=60.0)
    say(node, 1, Ready(version=4, level=0), 1.0)
    for version, now in ((4, 2.0), (5, 6.0)):
        say(node, 3, Ready(version=version), now)
    lost(node, 3, 6.0)
    assert only(look(node, 6.0 + 3 * AWAY_S), StartRound)
    assert not only(look(node, 6.0 + 3 * 4.0), StartRound)


def test_nobody_trains_for_a_neighbor_that_is_gone_and_the_end_waits_for_it_no_longer_than_it_was_away():
    node = at_its_end(1, 3)
    say(node, 1, Ready(version=4, level=0), 1.0)
    lost(node, 3, 1.0)
    assert only(look(node, 2.0), StartRound), "it was there a second ago"
    effects = look(node, 4.0)
    assert not only(effects, StartRound)
    assert node.rounds.phase is Phase.TRAINING
    assert not only(look(node, 1.0 + LINGER_S - 0.6), StartRound)
    look(node, 0.5 + LINGER_S)
    assert node.termination.ended_by is Reason.PRESENT
    assert node.unfinished == [3]


def test_a_round_counts_a_neighbor_that_keeps_its_session_and_answers_nothing_as_away():
    """It would count this node as away as well; with all neighbors like that the node is alone."""
    node = make_node(0, 1, 3, rounds_done=1, version=1, fresh=False, members=4)
    started(node)
    for peer in (1, 3):
        open_session(node, peer, now=0.5)
    mute(node, 3, since=1.0)
    assert node.termination.absent_neighbors(1.0 + AWAY_S - 0.1) == ()
    assert node.termination.absent_neighbors(1.0 + AWAY_S) == (3,)
    node.census.claims[3].round_s = AWAY_S
    assert node.termination.absent_neighbors(1.0 + AWAY_S) == (), "long rounds have more time"
    node.census.claims[3].round_s = 0.1
    mute(node, 1, since=1.0)
    assert only(look(node, 6.0), StartRound)[0].accompanied is False


@pytest.mark.parametrize("rounds", [10, 1000])
def test_a_mute_neighbor_neither_adds_a_round_nor_a_second_at_the_end(rounds):
    """Its session is open, and whatever it says of its progress, it exchanges nothing."""
    node = at_its_end(1, 3, at=9.0)
    mute(node, 3, since=0.0)
    for version in range(4, 4 + rounds):
        say(node, 3, Ready(version=version, trained=version), 9.0)
    say(node, 1, Ready(version=4, level=0), 9.0)
    effects = look(node, 9.0)
    assert node.termination.ended_by is Reason.PRESENT
    assert [(alarm.kind, alarm.peer) for alarm in only(effects, Alarm)] == [("takes-no-part", 3)]


def test_a_mute_neighbor_does_not_hold_up_closing_and_lingering():
    node = at_its_end(1, 3, at=9.0, closing_rounds=1)
    mute(node, 3, since=0.0)
    say(node, 1, Ready(version=4, closing=1, level=0), 9.0)
    commit(node, look(node, 9.0), 9.1)
    node.edges[1].progress.done = True
    look(node, 9.2)
    assert node.facts.closing_rounds_done == 1
    assert node.rounds.phase is Phase.FINISHED


def test_a_slow_neighbor_that_takes_part_is_trained_with_until_the_documented_wait_is_over():
    """Of its rounds it needs three for as long as this node's whole training; each exchange of others it answers."""
    node = at_its_end(1, 3)
    say(node, 3, Ready(version=4, trained=1), 1.0)
    for now in (2.0, 4.0, 5.9):
        assert only(look(node, now), StartRound), now
        say(node, 3, Ready(version=int(10 * now), trained=2), now)
    look(node, 1.0 + LINGER_S)
    assert node.termination.ended_by is Reason.HALF


def test_a_neighbor_that_comes_back_is_trained_with_again():
    node = at_its_end(1, 3)
    say(node, 1, Ready(version=4, level=0), 1.0)
    lost(node, 3, 1.0)
    assert not only(look(node, 4.5), StartRound)
    assert only(open_session(node, 3, now=5.0, session=2, greeting=hello(version=2, level=None)), StartRound)


def test_a_neighbor_that_sees_the_unfinished_one_at_work_holds_the_others_from_rest():
    """Node 3 is no neighbor of node 0; its own neighbors, of which 2 is one, tell a level or none."""
    node = at_its_end(1, 2, hops=2)
    assert only(look(node, 2.0), StartRound)
    say(node, 1, Ready(version=4, level=1), 2.0)
    effects = look(node, 2.1)
    assert only(effects, StartRound), "2 has told of none"
    assert {effect.message.level for effect in only(effects, Send) if isinstance(effect.message, Ready)} == {0}
    say(node, 2, Ready(version=4, level=1), 2.2)
    assert not only(look(node, 2.3), StartRound)
    say(node, 2, Ready(version=5, level=None), 2.4)
    assert only(look(node, 2.5), StartRound)


def test_who_sees_nobody_missing_ends_when_a_neighbor_that_does_has_stopped():
    node = at_its_end(1, 2, hops=2)
    for peer in (1, 2):
        say(node, peer, Ready(version=4, level=1), 1.5)
    look(node, 2.0)
    assert node.termination.ended_by is None
    say(node, 2, Ready(version=5, level=2, closing=0), 2.1)
    look(node, 2.2)
    assert node.termination.ended_by is Reason.PRESENT


@pytest.mark.parametrize("liar", [None, 0, 2**40])
def test_one_liar_can_neither_end_training_nor_hold_it_beyond_the_documented_wait(liar):
    """By the level it tells: the least of all neighbors' counts, and half still ends it."""
    node = at_its_end(1, 2, 3, hops=2)
    say(node, 3, Ready(version=4, trained=1), 1.5)
    say(node, 2, Ready(version=4, level=liar), 1.5)
    assert only(look(node, 2.0), StartRound)
    say(node, 3, Ready(version=5, trained=2), 5.0)
    look(node, 1.0 + LINGER_S)
    assert node.termination.ended_by is Reason.HALF


def test_a_neighbor_that_was_never_met_is_not_judged():
    """Perhaps this edge alone does not work."""
    node = at_its_end(1, 3, met=False)
    assert only(look(node, 4.5), StartRound)
    look(node, 1.0 + LINGER_S)
    assert node.termination.ended_by is Reason.HALF


def test_in_an_undisturbed_run_nobody_tells_a_level():
    node = at_its_end(1, 2, hops=2)
    effects = look(node, 2.0)
    assert {effect.message.level for effect in only(effects, Send) if isinstance(effect.message, Ready)} <= {None}
    assert node.facts.settled is None
