"""Sessions: one Hello each way comes first, messages belong to the session that carried them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from p2pfl.core.events import (
    Alarm,
    ApplyReply,
    ApplyRequest,
    CloseSession,
    Freeze,
    MessageReceived,
    ResetEdge,
    Send,
    SessionClosed,
    SessionOpened,
)
from p2pfl.core.messages import Ask, Busy, Done, EdgeRecord, Ready, Request, Resync
from tests.invariants import check_invariants

sys.path.insert(0, str(Path(__file__).parent))
from core_kit import (
    apply_request,
    freeze,
    hello,
    initiator,
    make_node,
    only,
    open_session,
    own_hello,
    pending_initiator,
    reply_to,
    request,
    responder,
    say,
    sent,
)

ANYTHING_BUT_HELLO = [
    request(),
    reply_to(request()),
    Ready(version=3, closing=None),
    Resync(incarnation=4),
    Ask(incarnation=0, seq=1, request_digest=b"d" * 16),
    Busy(incarnation=0, seq=1, retry_after_s=1.0),
    Done(version=3),
]


@pytest.mark.parametrize("message", ANYTHING_BUT_HELLO, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("ends", [(0, 1), (1, 0)], ids=["initiator", "responder"])
def test_before_both_greetings_nothing_but_hello_counts(ends, message):
    node = make_node(*ends)
    node.handle(SessionOpened(peer=ends[1], session=1), 0.0)
    assert say(node, ends[1], message) == []
    assert node.edges[ends[1]].exchange.record == EdgeRecord()
    assert not node.edges[ends[1]].progress.done


def test_a_session_begins_with_our_hello_and_opens_with_theirs():
    node = make_node(1, 0)
    assert node.handle(SessionOpened(peer=0, session=5), 0.0) == [Send(peer=0, session=5, message=own_hello())]
    assert not node.edges[0].is_open
    say(node, 0, hello(), session=5)
    assert node.edges[0].is_open


def test_hello_is_repeated_every_second_until_the_other_end_is_heard():
    node = make_node(1, 0)
    node.handle(SessionOpened(peer=0, session=5), 0.0)
    for second in (1.0, 2.0, 3.0):
        assert node.deadline() == second
        assert node.wake(second) == [Send(peer=0, session=5, message=own_hello())]
    say(node, 0, hello(), now=3.5, session=5)
    assert node.deadline() is None


def test_a_repeated_hello_is_answered_only_if_it_does_not_say_i_have_yours():
    node = responder()
    assert say(node, 0, hello(have_yours=True)) == []
    assert say(node, 0, hello()) == [Send(peer=0, session=1, message=own_hello(have_yours=True))]


def test_a_second_hello_that_says_something_else_changes_nothing():
    node = responder()
    say(node, 0, hello(incarnation=9, done=True, have_yours=True))
    assert node.edges[0].exchange.record == EdgeRecord()
    assert not node.edges[0].progress.done


def test_hello_has_the_same_fields_each_time_although_the_node_has_gone_on():
    node = responder()
    node.facts.version = 12
    assert sent(say(node, 0, hello())) == [own_hello(have_yours=True)]


def test_messages_of_another_session_are_void():
    node = responder()
    for session in (0, 2):
        assert say(node, 0, request(), session=session) == []


def test_a_new_session_replaces_the_old_one_at_once():
    node, asked = pending_initiator()
    open_session(node, 1, session=2)
    assert say(node, 1, reply_to(asked), session=1) == []
    assert only(say(node, 1, reply_to(asked), session=2), ApplyReply)


def test_the_end_of_an_older_session_does_not_end_the_newer_one():
    node = responder()
    open_session(node, 0, session=2)
    node.handle(SessionClosed(peer=0, session=1), 0.0)
    assert node.edges[0].is_open


def test_what_waited_when_a_session_ended_is_void():
    node = responder()
    effects = say(node, 0, request())
    say(node, 0, request(seq=2))
    node.handle(SessionClosed(peer=0, session=1), 0.0)
    check_invariants(node)
    _, after = apply_request(node, effects)
    assert after == []
    assert node.edges[0].exchange.record.seq == 1


def test_hello_is_composed_only_after_the_engine_is_through_with_the_edge():
    """Otherwise it would deny the transaction that is being applied."""
    node = responder()
    effects = say(node, 0, request())
    assert node.handle(SessionOpened(peer=0, session=2), 0.0) == []
    assert say(node, 0, hello(pending=1, request_digest=request().digest), session=2) == []
    reply, after = apply_request(node, effects)
    said = sent(after)
    assert (said[0].seq, said[0].request_digest, said[0].pending) == (1, request().digest, None)
    assert only(after, ResetEdge) == []
    assert node.edges[0].is_open
    assert say(node, 0, request(), session=2) == [Send(peer=0, session=2, message=reply)]


def test_a_request_frozen_for_a_session_that_has_ended_leaves_with_the_next_one():
    node, effects = initiator()
    node.handle(SessionClosed(peer=1, session=1), 0.0)
    asked, after = freeze(node, effects)
    assert after == []
    effects = open_session(node, 1, session=2)
    assert sent(effects)[0].pending == 1
    assert Send(peer=1, session=2, message=asked) in effects
    assert only(effects, Freeze) == []


def test_a_pending_request_is_resolved_from_the_log_first():
    """The responder had applied it: its greeting says so, the request is repeated, no resync."""
    node, asked = pending_initiator()
    theirs = hello(seq=1, request_digest=asked.digest, chain=b"c" * 16)
    effects = open_session(node, 1, session=2, greeting=theirs)
    assert only(effects, ResetEdge) == []
    assert sent(effects)[-1] == asked


def test_greetings_that_contradict_each_other_begin_a_new_incarnation():
    node, _ = pending_initiator()
    effects = open_session(node, 1, session=2, greeting=hello(incarnation=6, seq=3))
    assert only(effects, ResetEdge) == [ResetEdge(peer=1, incarnation=7)]
    assert [(op.incarnation, op.seq, op.staleness) for op in only(effects, Freeze)] == [(7, 1, 0.0)]


def test_both_ends_of_contradicting_greetings_choose_the_same_incarnation():
    mine, theirs = make_node(0, 1), make_node(1, 0)
    mine.edges[1].exchange.record.reset(4)
    theirs.edges[0].exchange.record.reset(9)
    first = mine.handle(SessionOpened(peer=1, session=1), 0.0)
    second = theirs.handle(SessionOpened(peer=0, session=1), 0.0)
    effects = say(mine, 1, sent(second)[0]) + say(theirs, 0, sent(first)[0])
    assert {effect.incarnation for effect in only(effects, ResetEdge)} == {10}


def test_an_incarnation_at_the_end_of_its_range_ends_the_session_and_stays():
    node = make_node(1, 0)
    effects = open_session(node, 0, greeting=hello(incarnation=2**53 - 1))
    assert only(effects, ResetEdge) == []
    assert [close.session for close in only(effects, CloseSession)] == [1]
    assert node.edges[0].exchange.record == EdgeRecord()


@pytest.mark.parametrize("extra", [3, 40])
def test_a_flood_at_a_busy_edge_is_not_kept(extra):
    node = responder()
    effects = say(node, 0, request())
    for seq in range(2, 2 + extra):
        say(node, 0, request(seq=seq))
        say(node, 0, Ask(incarnation=0, seq=seq, request_digest=b"d" * 16))
    kept = node.edges[0].line.inbox
    assert len(kept) <= 8
    assert sum(isinstance(message, Request) for message in kept) == 1
    assert only(apply_request(node, effects)[1], ApplyRequest, Send)


def test_every_event_of_an_unknown_session_leaves_the_node_as_it_was():
    node = make_node(1, 0)
    assert node.handle(MessageReceived(peer=0, session=3, message=own_hello()), 0.0) == []
    assert node.handle(SessionClosed(peer=0, session=3), 0.0) == []
    assert node.deadline() is None


@pytest.mark.parametrize(
    ("greeting", "notice"),
    [({"has_replicas": False}, True), ({"seq": 7, "chain": b"other chain" + bytes(5)}, False)],
)
def test_an_end_that_was_started_without_replicas_is_a_notice_and_a_disagreement_an_alarm(greeting, notice):
    node = make_node(1, 0)
    (alarm,) = only(open_session(node, 0, greeting=hello(**greeting)), Alarm)
    assert (alarm.kind, alarm.notice) == ("resync", notice)
    assert ("without replicas" in alarm.text) == notice
