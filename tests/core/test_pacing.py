"""Pacing: a tick waits for every live edge, never longer than that edge's patience, and a dead edge costs nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from p2pfl.core.events import Freeze, RoundTrained, SessionClosed, StartRound
from p2pfl.core.limits import Patience
from p2pfl.core.messages import Ready

sys.path.insert(0, str(Path(__file__).parent))
from core_kit import (
    apply_reply,
    apply_request,
    begun_alone,
    commit,
    exchange_as_initiator,
    freeze,
    make_node,
    only,
    open_session,
    reply_to,
    request,
    say,
    sent,
)


def training(index, *neighbors, **changes):
    """A node in its first round, every edge open; at time 0."""
    node = make_node(index, *neighbors, **({"start_wait_s": 0.0, "rounds": 1000} | changes))
    effects = begun_alone(node)
    assert only(effects, StartRound) == [StartRound(index=0, accompanied=False)]
    return node


def ticked(node, now):
    """The round ends and is committed at `now`; what follows."""
    return commit(node, node.handle(RoundTrained(steps=5, samples=30), now), now)


def test_the_next_round_starts_when_every_live_edge_has_exchanged_the_new_version():
    node = training(0, 1, 2)
    first = exchange_as_initiator(node, open_session(node, 1))
    second = exchange_as_initiator(node, open_session(node, 2))
    effects = first + second + ticked(node, 1.0)
    assert only(effects, StartRound) == []
    frozen = {op.peer: op for op in only(effects, Freeze)}
    assert {op.version for op in frozen.values()} == {1}
    assert only(exchange_as_initiator(node, [frozen[1]], 1.01), StartRound) == []
    assert only(exchange_as_initiator(node, [frozen[2]], 1.015), StartRound) == [StartRound(index=1, accompanied=True)]


def test_an_exchange_of_the_version_before_does_not_start_the_next_round():
    node = training(0, 1)
    asked, _ = freeze(node, open_session(node, 1))
    effects = ticked(node, 1.0)
    assert only(effects, Freeze, StartRound) == []
    effects = apply_reply(node, say(node, 1, reply_to(asked), 1.1), 1.1)
    assert [op.version for op in only(effects, Freeze)] == [1]
    assert only(effects, StartRound) == []


def test_a_tick_waits_no_longer_than_the_patience_and_half_as_long_after_each_miss():
    node = training(0, 1)
    freeze(node, open_session(node, 1))
    now, waits = 0.0, []
    for _ in range(5):
        now += 10.0
        assert only(ticked(node, now), StartRound) == []
        end = node.rounds.due
        assert only(node.wake(end - 1e-6), StartRound) == []
        assert only(node.wake(end), StartRound)
        waits.append(end - now)
        now = end
    assert waits == pytest.approx([1.0, 0.5, 0.25, 0.125, 0.0625])


def test_a_neighbor_without_a_session_costs_nothing():
    node = training(0, 1, 2)
    assert only(ticked(node, 1.0), StartRound) == [StartRound(index=1, accompanied=False)]


def test_a_round_knows_which_neighbors_are_away_where_others_are_there():
    node = training(0, 1, 2)
    asked = exchange_as_initiator(node, open_session(node, 1)) + ticked(node, 1.0)
    effects = exchange_as_initiator(node, only(asked, Freeze)[-1:], 1.01)
    assert only(effects, StartRound) == [StartRound(index=1, accompanied=True, away=(2,))]


def test_a_session_that_ends_ends_the_waiting_for_it():
    node = training(0, 1)
    freeze(node, open_session(node, 1))
    ticked(node, 1.0)
    assert only(node.handle(SessionClosed(peer=1, session=1), 1.1), StartRound) == [
        StartRound(index=1, accompanied=False)
    ]


def test_no_tick_waits_longer_than_the_setting():
    node = training(0, 1, max_wait_s=0.125)
    freeze(node, open_session(node, 1))
    ticked(node, 1.0)
    assert node.rounds.due == 1.125


def test_a_responder_asks_for_an_exchange_of_its_new_version():
    node = training(1, 0)
    open_session(node, 0)
    effects = ticked(node, 1.0)
    assert [(type(message), message.version, message.closing) for message in sent(effects)] == [(Ready, 1, None)]
    assert only(effects, StartRound) == []
    _, effects = apply_request(node, say(node, 0, request(), 1.1), 1.1)
    assert only(effects, StartRound) == [StartRound(index=1, accompanied=True)]


def test_an_initiator_answers_a_ready_with_a_request_although_it_has_nothing_new():
    node = training(0, 1)
    exchange_as_initiator(node, open_session(node, 1), version=3)
    assert say(node, 1, Ready(version=3, closing=None)) == []
    assert [op.version for op in only(say(node, 1, Ready(version=4, closing=None)), Freeze)] == [0]


def test_a_ready_that_comes_during_an_exchange_is_not_lost():
    node = training(0, 1)
    asked, _ = freeze(node, open_session(node, 1))
    effects = say(node, 1, reply_to(asked, version=3))
    say(node, 1, Ready(version=4, closing=None))
    assert [op.echo for op in only(apply_reply(node, effects), Freeze)] == [3]


def test_a_ready_for_what_the_same_exchange_brought_asks_for_nothing_more():
    node = training(0, 1)
    asked, _ = freeze(node, open_session(node, 1))
    effects = say(node, 1, reply_to(asked, version=4))
    say(node, 1, Ready(version=4, closing=None))
    assert only(apply_reply(node, effects), Freeze) == []


def test_patience_is_a_multiple_of_the_measured_time_and_never_above_the_setting():
    patience = Patience(longest_s=5.0)
    assert patience.wait_s() == 1.0
    patience.note_exchange(0.1)
    assert patience.wait_s() == pytest.approx(0.42)
    for _ in range(60):
        patience.note_exchange(100.0)
    assert patience.wait_s() == 5.0


def test_patience_comes_back_with_the_first_exchange():
    patience = Patience(longest_s=5.0)
    for _ in range(40):
        patience.note_miss()
    assert patience.wait_s() < 0.001
    patience.note_exchange(None)
    assert patience.wait_s() == 1.0
