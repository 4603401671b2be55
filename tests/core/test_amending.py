"""The federation changes while the node runs: when that takes effect, and what becomes of each edge."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from p2pfl.core.events import (
    Alarm,
    Amended,
    ApplyReply,
    ChangeEdges,
    CloseSession,
    CommitRound,
    Finish,
    Freeze,
    MessageReceived,
    RoundTrained,
    SessionOpened,
    StartRound,
)
from p2pfl.core.messages import Busy, Ready
from p2pfl.core.settings import Phase
from tests.invariants import check_invariants

sys.path.insert(0, str(Path(__file__).parent))
from core_kit import (
    apply_reply,
    apply_request,
    begun_alone,
    commit,
    exchange_as_initiator,
    freeze,
    hello,
    is_through,
    make_node,
    only,
    open_session,
    reply_to,
    request,
    say,
    sent,
    started,
)


def amended(node, *neighbors, **changes):
    return Amended(neighbors=neighbors, turns={}, settings=replace(node.settings, **changes))


def training(index, *neighbors, **changes):
    """In its first round, with nobody there."""
    node = make_node(index, *neighbors, **({"rounds": 9} | changes))
    begun_alone(node)
    return node


def end_round(node, now):
    """The round under way ends, and its exchanges with it; what follows."""
    effects = node.handle(RoundTrained(steps=1, samples=30), now)
    return commit(node, effects, now)


def test_a_running_round_ends_as_it_would_have_and_then_the_edges_are_others():
    node = training(1, 0, 2)
    assert node.handle(amended(node, 0, 3), 0.1) == []
    assert list(node.edges) == [0, 2]
    effects = end_round(node, 0.2)
    assert only(effects, ChangeEdges, StartRound) == [
        ChangeEdges(added=(3,), dropped=(2,)),
        StartRound(index=1, accompanied=False),
    ]
    assert list(node.edges) == [0, 3]
    assert node.facts.degree == 2
    check_invariants(node)


def test_of_several_changes_the_newest_counts_and_the_same_again_changes_nothing():
    node = training(1, 0, 2)
    node.handle(amended(node, 0, 3), 0.1)
    node.handle(amended(node, 0, 2, 4), 0.1)
    assert only(end_round(node, 0.2), ChangeEdges) == [ChangeEdges(added=(4,), dropped=())]
    node.handle(amended(node, 0, 2, 4), 0.3)
    assert only(end_round(node, 0.4), ChangeEdges) == [ChangeEdges(added=(), dropped=())]


def test_edges_that_stay_keep_their_session_and_what_is_pending():
    node = training(0, 1, 2)
    _, effects = freeze(node, open_session(node, 1), 0.1)
    edge = node.edges[1]
    node.handle(amended(node, 1, 3), 0.1)
    node.wake(9.0)
    end_round(node, 9.1)
    effects = node.wake(20.0)
    assert list(node.edges) == [1, 3], effects
    assert node.edges[1] is edge
    assert edge.is_open
    assert edge.exchange.record.pending is not None


def test_with_a_removed_member_nothing_is_exchanged_from_the_first_moment_on():
    node = training(0, 1, 2)
    exchange_as_initiator(node, open_session(node, 1))
    assert node.handle(amended(node, 2, retired=frozenset({1})), 0.1) == [
        CloseSession(peer=1, session=1, reason="no longer a member")
    ]
    refused = node.handle(SessionOpened(peer=1, session=2), 0.2)
    assert refused == [CloseSession(peer=1, session=2, reason="resting")]
    assert only(end_round(node, 0.3), ChangeEdges) == [ChangeEdges(added=(), dropped=(1,))]


def test_a_reply_to_a_request_on_an_edge_that_goes_is_still_applied_before_it_does():
    """Else its other half, which the neighbor has applied, would be missing."""
    node = training(0, 1, 2)
    asked, _ = freeze(node, open_session(node, 1, 0.1), 0.1)
    node.handle(amended(node, 2), 0.1)
    assert only(end_round(node, 0.2), ChangeEdges) == []
    assert node.deadline() < 2.0, "bounded by the patience with that neighbor"
    effects = say(node, 1, reply_to(asked), 0.3)
    assert len(only(effects, ApplyReply)) == 1
    assert only(node.wake(9.0), ChangeEdges) == [], "the engine is at work on it"
    effects = apply_reply(node, effects, 9.0)
    assert effects[:2] == [
        CloseSession(peer=1, session=1, reason="no longer a neighbor"),
        ChangeEdges(added=(), dropped=(1,)),
    ]
    assert only(effects, Freeze) == []
    assert len(only(effects, StartRound)) == 1


def test_nothing_new_begins_on_an_edge_that_goes():
    node = training(0, 1, 2)
    exchange_as_initiator(node, open_session(node, 1, 0.1), 0.1)
    node.handle(amended(node, 2), 0.1)
    assert only(say(node, 1, Ready(version=7), 0.1), Freeze) == []
    assert only(end_round(node, 0.2), Freeze) == []
    assert list(node.edges) == [2]


def test_a_reply_that_may_be_on_its_way_is_waited_for_until_the_neighbor_has_asked_again():
    node = training(1, 0, 2)
    open_session(node, 0)
    applied(node, 0, request())
    node.handle(amended(node, 2), 0.1)
    assert only(end_round(node, 0.2), ChangeEdges) == []
    effects = say(node, 0, request(seq=2), 0.3)
    assert len(only(sent(effects), Busy)) == 1, "it has had the answer to the one before"
    assert only(effects, ChangeEdges) == [ChangeEdges(added=(), dropped=(0,))]


def applied(node, peer, asked, now=0.1):
    """The engine has applied this request."""
    return apply_request(node, say(node, peer, asked, now), now)


def test_a_neighbor_that_never_answers_is_not_waited_for_longer_than_a_round_would():
    node = training(0, 1, 2)
    freeze(node, open_session(node, 1, 0.1), 0.1)
    node.handle(amended(node, 2), 0.1)
    end_round(node, 0.2)
    effects = node.wake(node.deadline())
    while not only(effects, ChangeEdges):
        assert node.deadline() < 5.0
        effects = node.wake(node.deadline())
    assert list(node.edges) == [2]


def test_a_neighbor_to_be_that_comes_early_is_greeted_once_it_is_one():
    """The other end may have gone over to the new graph before: its session need not be dialed again."""
    node = training(1, 0)
    assert node.handle(SessionOpened(peer=2, session=4), 0.1) == [
        CloseSession(peer=2, session=4, reason="no neighbor of this node")
    ]
    node.handle(amended(node, 0, 2), 0.1)
    assert node.handle(SessionOpened(peer=2, session=5), 0.1) == []
    assert node.handle(MessageReceived(peer=2, session=5, message=hello()), 0.1) == []
    effects = end_round(node, 0.2)
    assert [message.version for message in sent(effects)] == [1]
    say(node, 2, hello(), 0.3, session=5)
    assert node.edges[2].is_open


def test_the_map_of_neighbors_stays_in_their_order():
    node = training(2, 1, 5, 7)
    node.handle(amended(node, 0, 1, 3, 5, 7), 0.1)
    end_round(node, 0.2)
    assert list(node.edges) == list(node.hearsay.lines) == list(node.census.claims) == [0, 1, 3, 5, 7]


@pytest.mark.parametrize(("rounds", "phase"), [(2, Phase.CLOSING), (9, Phase.TRAINING)])
def test_the_rounds_to_do_may_become_more_or_fewer(rounds, phase):
    """A node that was through goes on; one that has done more than there are to do ends as if they were done."""
    node = training(0, 1, rounds=3)
    is_through(node, 1)
    for number in (1, 2):
        end_round(node, float(number))
    node.handle(amended(node, 1, rounds=rounds), 2.5)
    end_round(node, 3.0)
    assert node.rounds.phase is phase
    assert node.facts.rounds == 3


def test_a_node_that_does_not_train_any_more_keeps_the_rounds_that_it_has_done():
    node = training(0, 1, rounds=1)
    is_through(node, 1)
    effects = end_round(node, 1.0)
    assert node.rounds.phase is Phase.CLOSING
    node.handle(amended(node, 2, rounds=9), 1.5)
    assert len(only(commit(node, effects, 1.6), ChangeEdges)) == 1
    assert node.rounds.phase is not Phase.TRAINING
    assert node.settings.rounds == 1


@pytest.mark.parametrize(("knows", "todo", "goes_on"), [(3, 9, True), (9, 9, False), (2, 1, False), (1, 2, False)])
def test_a_neighbor_that_has_stopped_because_it_knows_of_fewer_rounds_stops_nobody(knows, todo, goes_on):
    """It goes on when it is started again; who ended with it would take all of the rounds for done."""
    node = training(0, 1, rounds=3)
    node.handle(amended(node, 1, rounds=todo), 0.1)
    open_session(node, 1, 0.2, greeting=hello(version=5, level=None, done=True, closing=2, trained=3, bound=knows))
    end_round(node, 1.0)
    node.wake(21.0)
    end_round(node, 22.0)
    node.wake(42.0)
    assert (node.rounds.phase is Phase.TRAINING) == goes_on


def test_a_node_that_was_removed_ends_and_says_why():
    node = training(0, 1)
    effects = node.handle(amended(node, retired=frozenset({0})), 0.1)
    assert [effect.kind for effect in only(effects, Alarm)] == ["removed"]
    assert only(effects, Finish) == [Finish(retired=True)]
    assert node.retired
    assert node.handle(amended(node, retired=frozenset({0})), 0.2) == []


def test_more_neighbors_do_not_make_a_node_claim_more_samples_than_it_has():
    """A request that was weighed among few is open while the next round is weighed among many."""
    node = training(0, 1, rounds=9)
    node.facts.joining = False
    freeze(node, open_session(node, 1, 0.1), 0.1)
    node.handle(amended(node, 1, 2, 3, 4, 5), 0.1)
    end_round(node, 20.0)
    node.wake(40.0)
    assert node.facts.degree == 5
    (op,) = only(node.handle(RoundTrained(steps=1, samples=30), 41.0), CommitRound)
    assert op.least_samples <= node.facts.samples


def test_a_change_before_the_start_takes_effect_with_it():
    node = make_node(0, 1)
    node.handle(amended(node, 2), 0.0)
    assert only(started(node), ChangeEdges) == [ChangeEdges(added=(2,), dropped=(1,))]
