"""Sessions: one Hello each way comes first, messages belong to the session that carried them."""

from __future__ import annotations

import dataclasses

import pytest
from core_kit import (
    apply_request,
    begun_alone,
    commit,
    exchange_as_initiator,
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
from msgspec.structs import replace

from p2pfl import core
from p2pfl.limits import MESSAGE_BURST
from tests.invariants import check_invariants

ANYTHING_BUT_HELLO = [
    request(),
    reply_to(request()),
    core.Ready(version=3, closing=None),
    core.Resync(incarnation=4),
    core.Ask(incarnation=0, seq=1, request_digest=b"d" * 16),
    core.Busy(incarnation=0, seq=1, retry_after_s=1.0),
    core.Done(version=3),
]


@pytest.mark.parametrize("message", ANYTHING_BUT_HELLO, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("ends", [(0, 1), (1, 0)], ids=["initiator", "responder"])
def test_before_both_greetings_nothing_but_hello_counts(ends, message):
    node = make_node(*ends)
    node.handle(core.SessionOpened(peer=ends[1], session=1), 0.0)
    assert say(node, ends[1], message) == []
    assert node.edges[ends[1]].exchange.record == core.EdgeRecord()
    assert not node.edges[ends[1]].progress.done


def test_a_session_begins_with_our_hello_and_opens_with_theirs():
    node = make_node(1, 0)
    assert node.handle(core.SessionOpened(peer=0, session=5), 0.0) == [
        core.Send(peer=0, session=5, message=own_hello())
    ]
    assert not node.edges[0].is_open
    say(node, 0, hello(), session=5)
    assert node.edges[0].is_open


def test_hello_is_repeated_every_second_until_the_other_end_is_heard():
    node = make_node(1, 0)
    node.handle(core.SessionOpened(peer=0, session=5), 0.0)
    for second in (1.0, 2.0, 3.0):
        assert node.deadline() == second
        assert node.wake(second) == [core.Send(peer=0, session=5, message=own_hello())]
    say(node, 0, hello(), now=3.5, session=5)
    assert node.deadline() is None


def test_a_repeated_hello_is_answered_only_if_it_does_not_say_i_have_yours():
    node = responder()
    assert say(node, 0, hello(have_yours=True)) == []
    assert say(node, 0, hello()) == [core.Send(peer=0, session=1, message=own_hello(have_yours=True))]


def test_greetings_are_answered_at_a_bounded_rate_over_all_sessions_and_one_a_second_always():
    node = responder()
    answers = [sent(say(node, 0, hello(), now=1.0)) for _ in range(500)]
    assert sum(map(len, answers)) <= MESSAGE_BURST
    open_session(node, 0, now=1.0, session=2)
    assert sent(say(node, 0, hello(), now=1.0, session=2)) == []
    for second in range(2, 100):
        assert sent(say(node, 0, hello(), now=float(second), session=2)) == [own_hello(have_yours=True)]


def test_a_second_hello_that_says_something_else_changes_nothing():
    node = responder()
    say(node, 0, hello(incarnation=9, done=True, have_yours=True))
    assert node.edges[0].exchange.record == core.EdgeRecord()
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
    assert only(say(node, 1, reply_to(asked), session=2), core.ApplyReply)


def test_the_end_of_an_older_session_does_not_end_the_newer_one():
    node = responder()
    open_session(node, 0, session=2)
    node.handle(core.SessionClosed(peer=0, session=1), 0.0)
    assert node.edges[0].is_open


def test_what_waited_when_a_session_ended_is_void():
    node = responder()
    effects = say(node, 0, request())
    say(node, 0, request(seq=2))
    node.handle(core.SessionClosed(peer=0, session=1), 0.0)
    check_invariants(node)
    _, after = apply_request(node, effects)
    assert after == []
    assert node.edges[0].exchange.record.seq == 1


def test_hello_is_composed_only_after_the_engine_is_through_with_the_edge():
    """Otherwise it would deny the transaction that is being applied."""
    node = responder()
    effects = say(node, 0, request())
    assert node.handle(core.SessionOpened(peer=0, session=2), 0.0) == []
    assert say(node, 0, hello(pending=1, request_digest=request().digest), session=2) == []
    reply, after = apply_request(node, effects)
    said = sent(after)
    assert (said[0].seq, said[0].request_digest, said[0].pending) == (1, request().digest, None)
    assert only(after, core.ResetEdge) == []
    assert node.edges[0].is_open
    assert say(node, 0, request(), session=2) == [core.Send(peer=0, session=2, message=reply)]


def test_a_request_frozen_for_a_session_that_has_ended_leaves_with_the_next_one():
    node, effects = initiator()
    node.handle(core.SessionClosed(peer=1, session=1), 0.0)
    asked, after = freeze(node, effects)
    assert after == []
    effects = open_session(node, 1, session=2)
    assert sent(effects)[0].pending == 1
    assert core.Send(peer=1, session=2, message=asked) in effects
    assert only(effects, core.Freeze) == []


def test_a_pending_request_is_resolved_from_the_log_first():
    """The responder had applied it: its greeting says so, the request is repeated, no resync."""
    node, asked = pending_initiator()
    theirs = hello(seq=1, request_digest=asked.digest, chain=b"c" * 16)
    effects = open_session(node, 1, session=2, greeting=theirs)
    assert only(effects, core.ResetEdge) == []
    assert sent(effects)[-1] == asked


def test_greetings_that_contradict_each_other_begin_a_new_incarnation():
    node, _ = pending_initiator()
    effects = open_session(node, 1, session=2, greeting=hello(incarnation=6, seq=3))
    assert only(effects, core.ResetEdge) == [core.ResetEdge(peer=1, incarnation=7)]
    assert [(op.incarnation, op.seq, op.staleness) for op in only(effects, core.Freeze)] == [(7, 1, 0.0)]


def test_both_ends_of_contradicting_greetings_choose_the_same_incarnation():
    mine, theirs = make_node(0, 1), make_node(1, 0)
    mine.edges[1].exchange.record.reset(4)
    theirs.edges[0].exchange.record.reset(9)
    first = mine.handle(core.SessionOpened(peer=1, session=1), 0.0)
    second = theirs.handle(core.SessionOpened(peer=0, session=1), 0.0)
    effects = say(mine, 1, sent(second)[0]) + say(theirs, 0, sent(first)[0])
    assert {effect.incarnation for effect in only(effects, core.ResetEdge)} == {10}


def test_an_incarnation_at_the_end_of_its_range_ends_the_session_and_stays():
    node = make_node(1, 0)
    effects = open_session(node, 0, greeting=hello(incarnation=2**53 - 1))
    assert only(effects, core.ResetEdge) == []
    assert [close.session for close in only(effects, core.CloseSession)] == [1]
    assert node.edges[0].exchange.record == core.EdgeRecord()


@pytest.mark.parametrize("extra", [3, 40])
def test_a_flood_at_a_busy_edge_is_not_kept(extra):
    node = responder()
    effects = say(node, 0, request())
    for seq in range(2, 2 + extra):
        say(node, 0, request(seq=seq))
        say(node, 0, core.Ask(incarnation=0, seq=seq, request_digest=b"d" * 16))
    kept = node.edges[0].line.inbox
    assert len(kept) <= 8
    assert sum(isinstance(message, core.Request) for message in kept) == 1
    assert only(apply_request(node, effects)[1], core.ApplyRequest, core.Send)


def test_every_event_of_an_unknown_session_leaves_the_node_as_it_was():
    node = make_node(1, 0)
    assert node.handle(core.MessageReceived(peer=0, session=3, message=own_hello()), 0.0) == []
    assert node.handle(core.SessionClosed(peer=0, session=3), 0.0) == []
    assert node.deadline() is None


@pytest.mark.parametrize(
    ("greeting", "notice"),
    [({"has_replicas": False}, True), ({"seq": 7, "chain": b"other chain" + bytes(5)}, False)],
)
def test_an_end_that_was_started_without_replicas_is_a_notice_and_a_disagreement_an_alarm(greeting, notice):
    node = make_node(1, 0)
    (alarm,) = only(open_session(node, 0, greeting=hello(**greeting)), core.Alarm)
    assert (alarm.kind, alarm.notice) == ("resync", notice)
    assert ("without replicas" in alarm.text) == notice


# -- The verdict on a pair of greetings, case by case.

OLD, NEW, OTHER = b"o" * 16, b"n" * 16, b"x" * 16
LAST, NEXT = b"l" * 16, b"m" * 16

IDLE = {"incarnation": 3, "seq": 7, "request_digest": LAST, "chain": NEW, "chain_before": OLD}
ASKING = IDLE | {"pending": 8, "request_digest": NEXT}
"""The initiator, with request 8 out."""
ANSWERED = IDLE | {"seq": 8, "request_digest": NEXT, "chain": OTHER, "chain_before": NEW}
"""The responder, once it has applied request 8."""


@pytest.mark.parametrize(
    ("initiator", "responder"),
    [
        pytest.param({}, {}, id="first contact"),
        pytest.param({"pending": 1, "request_digest": NEXT}, {}, id="first contact, request out"),
        pytest.param(IDLE, IDLE, id="nothing pending"),
        pytest.param(ASKING, IDLE, id="pending, not applied"),
        pytest.param(ASKING, ANSWERED, id="pending, applied"),
        pytest.param(IDLE, IDLE | {"request_digest": OTHER}, id="the last request's digest does not matter"),
    ],
)
def test_ends_that_can_go_on_do(initiator, responder):
    assert core.are_consistent(hello(**initiator), hello(**responder))


@pytest.mark.parametrize(
    ("initiator", "responder"),
    [
        pytest.param(IDLE, IDLE | {"incarnation": 4}, id="incarnations differ"),
        pytest.param(IDLE | {"has_replicas": False}, IDLE, id="the initiator has no replicas"),
        pytest.param(IDLE, IDLE | {"has_replicas": False}, id="the responder has no replicas"),
        pytest.param(IDLE, IDLE | {"chain": OTHER}, id="nothing pending, chains differ"),
        pytest.param(IDLE, IDLE | {"seq": 6}, id="nothing pending, the responder is behind"),
        pytest.param(IDLE, ANSWERED, id="nothing pending, the responder is ahead"),
        pytest.param(ASKING, IDLE | {"chain": OTHER}, id="pending and not applied, chains differ"),
        pytest.param(ASKING, IDLE | {"seq": 6}, id="pending, the responder two behind"),
        pytest.param(ASKING, ANSWERED | {"request_digest": OTHER}, id="applied another request"),
        pytest.param(ASKING, ANSWERED | {"chain_before": OTHER}, id="applied, chains before differ"),
        pytest.param(ASKING, ANSWERED | {"chain": NEW, "chain_before": OLD}, id="applied, but only chains now agree"),
        pytest.param(ASKING, ANSWERED | {"seq": 9}, id="pending, the responder ahead by two"),
        pytest.param(IDLE, {}, id="the responder has lost everything"),
        pytest.param({}, IDLE, id="the initiator has lost everything"),
        pytest.param({"pending": 9}, {"seq": 8}, id="a pending request far beyond the own count"),
    ],
)
def test_ends_that_cannot_go_on_do_not(initiator, responder):
    assert not core.are_consistent(hello(**initiator), hello(**responder))


def test_version_done_and_the_answer_bit_do_not_enter_the_verdict():
    assert core.are_consistent(hello(**IDLE), hello(**IDLE, version=99, done=True, have_yours=True))


# -- The record of an edge: what a new incarnation forgets, what a digest covers.


def full_record():
    asked = request(seq=5)
    return core.EdgeRecord(
        incarnation=2,
        seq=4,
        pending=asked,
        request_digest=asked.digest,
        reply=reply_to(request(seq=4)),
        has_replicas=False,
        chain=b"c" * 16,
        chain_before=b"b" * 16,
        heard=7,
        known=8,
        last_factor_zero=True,
        resyncs=1,
    )


def test_a_new_incarnation_forgets_all_but_that_there_were_others():
    record = full_record()
    record.reset(9)
    assert record == core.EdgeRecord(incarnation=9, resyncs=2)


def test_two_ends_that_began_the_same_incarnation_find_each_other_consistent():
    """Whatever each had before: the next greetings open the edge without another resync."""
    node, _ = pending_initiator()
    say(node, 1, core.Resync(incarnation=9))
    other = make_node(1, 0, records={0: dataclasses.replace(full_record(), pending=None)})
    other.edges[0].exchange.record.reset(9)
    theirs = other.edges[0].exchange.record.hello(version=3, closing=None, level=None, done=False, have_yours=False)
    mine = node.edges[1].exchange.record.hello(version=0, closing=None, level=None, done=False, have_yours=False)
    assert only(open_session(other, 0, greeting=mine), core.ResetEdge) == []
    assert (theirs.chain, theirs.seq) == (core.NO_CHAIN, 0)


CHANGED = {
    "incarnation": 1,
    "seq": 2,
    "version": 2,
    "echo": 0,
    "weight": 16.0,
    "staleness": 0.5,
    "pace_s": 1e-9,
    "terms": (1e-9,),
    "audit": b"a" * 16,
    "body": b"bodz",
}


@pytest.mark.parametrize("name", [name for name in core.Request.__struct_fields__ if name != "digest"])
def test_a_request_digest_covers_every_field_that_travels(name):
    assert core.request_digest(request(**{name: CHANGED[name]})) != core.request_digest(request())


def test_audit_and_body_cannot_trade_bytes():
    assert core.request_digest(request(audit=b"a" * 16, body=b"")) != core.request_digest(
        request(audit=b"", body=b"a" * 16)
    )


def test_a_chain_covers_what_came_before_the_request_and_the_answer():
    asked = request()
    answer = reply_to(asked)
    chains = {
        core.next_chain(core.NO_CHAIN, asked, answer),
        core.next_chain(b"c" * 16, asked, answer),
        core.next_chain(core.NO_CHAIN, request(body=b"other"), answer),
        core.next_chain(core.NO_CHAIN, asked, replace(answer, body=b"other")),
    }
    assert len(chains) == 4


def test_the_digests_of_a_transaction_are_pinned():
    """Nodes on different machines, and a log written long ago, must agree on them."""
    asked = replace(request(audit=b"a" * 16, body=bytes(range(256)) * 1000), digest=b"")
    digest = core.request_digest(asked)
    assert digest.hex() == "5ade0da65d0fdbd8b428f1f822e05345"
    assert (
        core.next_chain(b"c" * 16, replace(asked, digest=digest), reply_to(asked)).hex()
        == "d283b2264af3ad4da498b022d6d0fc1f"
    )


# -- Without a disk a durable node stops exchanging and goes on training; a restart continues where the disk stands.


def test_a_storage_failure_ends_every_session_with_one_alarm():
    node = make_node(1, 0, 2)
    open_session(node, 0)
    open_session(node, 2, session=2)
    effects = node.handle(core.StorageFailed(), 0.0)
    assert [alarm.kind for alarm in only(effects, core.Alarm)] == ["storage"]
    assert [(close.peer, close.session) for close in only(effects, core.CloseSession)] == [(0, 1), (2, 2)]
    assert node.handle(core.StorageFailed(), 0.0) == []


def test_what_was_computed_but_is_not_on_disk_does_not_leave():
    """The failure is told before the answers that depended on the write."""
    node = responder()
    effects = say(node, 0, request())
    node.handle(core.StorageFailed(), 0.0)
    _, after = apply_request(node, effects)
    assert only(after, core.Send) == []
    node, effects = initiator()
    node.handle(core.StorageFailed(), 0.0)
    _, after = freeze(node, effects)
    assert only(after, core.Send) == []


def test_a_halted_node_takes_no_session():
    node = responder()
    node.handle(core.StorageFailed(), 0.0)
    effects = node.handle(core.SessionOpened(peer=0, session=2), 1.0)
    assert effects == [core.CloseSession(peer=0, session=2, reason="resting")]


def test_a_halted_node_goes_on_training():
    node = make_node(0, 1, start_wait_s=0.0)
    begun_alone(node)
    node.handle(core.StorageFailed(), 0.0)
    effects = commit(node, node.handle(core.RoundTrained(steps=1, samples=30), 1.0), 1.0)
    assert only(effects, core.StartRound) == [core.StartRound(index=1, accompanied=False)]
    assert only(effects, core.Freeze) == []


def test_a_node_whose_disk_is_back_exchanges_again_where_it_was():
    node, effects = initiator()
    asked, _ = freeze(node, effects)
    node.handle(core.StorageFailed(), 0.0)
    assert [alarm.kind for alarm in node.handle(core.StorageRestored(), 5.0)] == ["storage-restored"]
    effects = open_session(node, 1, now=6.0, session=2)
    assert asked in sent(effects)


def test_a_node_that_does_not_promise_durability_goes_on_exchanging():
    node, _ = initiator(durable=False)
    effects = node.handle(core.StorageFailed(), 0.0)
    assert [type(effect) for effect in effects] == [core.Alarm]
    assert node.edges[1].is_open


# -- restart ----------------------------------------------------------------------------------------------------------


def test_after_a_restart_the_pending_request_leaves_as_it_was_frozen():
    asked = request(seq=5, version=8)
    record = core.EdgeRecord(incarnation=0, seq=4, chain=b"c" * 16)
    record.freeze(asked)
    node = make_node(0, 1, fresh=False, version=9, rounds_done=9, records={1: record})
    effects = open_session(node, 1, greeting=hello(seq=4, chain=b"c" * 16))
    assert only(effects, core.ResetEdge, core.Freeze) == []
    assert sent(effects)[-1] == asked


def test_after_a_restart_the_logged_answer_is_still_given():
    node = responder()
    asked = request()
    reply, _ = apply_request(node, say(node, 0, asked))
    again = make_node(1, 0, fresh=False, version=1, records={0: node.edges[0].exchange.record})
    effects = open_session(again, 0, greeting=hello(pending=1, request_digest=asked.digest))
    assert only(effects, core.ResetEdge) == []
    assert say(again, 0, asked) == [core.Send(peer=0, session=1, message=reply)]


def test_after_a_restart_without_replicas_the_edge_begins_anew():
    record = core.EdgeRecord(incarnation=2, has_replicas=False)
    node = make_node(1, 0, fresh=False, version=9, rounds_done=9, records={0: record})
    effects = open_session(node, 0, greeting=hello(incarnation=2))
    assert only(effects, core.ResetEdge) == [core.ResetEdge(peer=0, incarnation=3)]
    assert node.edges[0].exchange.record.has_replicas
    assert only(say(node, 0, request(incarnation=3)), core.ApplyRequest)


def test_a_restarted_initiator_exchanges_although_the_neighbor_has_nothing_new():
    node = make_node(
        0, 1, fresh=False, version=9, records={1: core.EdgeRecord(seq=3, chain=b"c" * 16, heard=7, known=8)}
    )
    effects = open_session(node, 1, greeting=hello(seq=3, chain=b"c" * 16))
    assert [(op.seq, op.echo, op.version) for op in only(effects, core.Freeze)] == [(4, 7, 9)]
    exchange_as_initiator(node, effects, version=7)
    assert say(node, 1, core.Ready(version=7, closing=None)) == []
