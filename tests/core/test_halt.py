"""Without a disk a durable node stops exchanging and goes on training; a restart continues where the disk stands."""

from __future__ import annotations

import sys
from pathlib import Path

from p2pfl.core.events import (
    Alarm,
    ApplyRequest,
    CloseSession,
    Freeze,
    ResetEdge,
    RoundTrained,
    Send,
    SessionOpened,
    StartRound,
    StorageFailed,
    StorageRestored,
)
from p2pfl.core.messages import EdgeRecord, Ready

sys.path.insert(0, str(Path(__file__).parent))
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
    request,
    responder,
    say,
    sent,
)


def test_a_storage_failure_ends_every_session_with_one_alarm():
    node = make_node(1, 0, 2)
    open_session(node, 0)
    open_session(node, 2, session=2)
    effects = node.handle(StorageFailed(), 0.0)
    assert [alarm.kind for alarm in only(effects, Alarm)] == ["storage"]
    assert [(close.peer, close.session) for close in only(effects, CloseSession)] == [(0, 1), (2, 2)]
    assert node.handle(StorageFailed(), 0.0) == []


def test_what_was_computed_but_is_not_on_disk_does_not_leave():
    """The failure is told before the answers that depended on the write."""
    node = responder()
    effects = say(node, 0, request())
    node.handle(StorageFailed(), 0.0)
    _, after = apply_request(node, effects)
    assert only(after, Send) == []
    node, effects = initiator()
    node.handle(StorageFailed(), 0.0)
    _, after = freeze(node, effects)
    assert only(after, Send) == []


def test_a_halted_node_takes_no_session():
    node = responder()
    node.handle(StorageFailed(), 0.0)
    effects = node.handle(SessionOpened(peer=0, session=2), 1.0)
    assert effects == [CloseSession(peer=0, session=2, reason="resting")]


def test_a_halted_node_goes_on_training():
    node = make_node(0, 1, start_wait_s=0.0)
    begun_alone(node)
    node.handle(StorageFailed(), 0.0)
    effects = commit(node, node.handle(RoundTrained(steps=1, samples=30), 1.0), 1.0)
    assert only(effects, StartRound) == [StartRound(index=1, accompanied=False)]
    assert only(effects, Freeze) == []


def test_a_node_whose_disk_is_back_exchanges_again_where_it_was():
    node, effects = initiator()
    asked, _ = freeze(node, effects)
    node.handle(StorageFailed(), 0.0)
    assert [alarm.kind for alarm in node.handle(StorageRestored(), 5.0)] == ["storage-restored"]
    effects = open_session(node, 1, now=6.0, session=2)
    assert asked in sent(effects)


def test_a_node_that_does_not_promise_durability_goes_on_exchanging():
    node, _ = initiator(durable=False)
    effects = node.handle(StorageFailed(), 0.0)
    assert [type(effect) for effect in effects] == [Alarm]
    assert node.edges[1].is_open


# -- restart ----------------------------------------------------------------------------------------------------------


def test_after_a_restart_the_pending_request_leaves_as_it_was_frozen():
    asked = request(seq=5, version=8)
    record = EdgeRecord(incarnation=0, seq=4, chain=b"c" * 16)
    record.freeze(asked)
    node = make_node(0, 1, fresh=False, version=9, rounds_done=9, records={1: record})
    effects = open_session(node, 1, greeting=hello(seq=4, chain=b"c" * 16))
    assert only(effects, ResetEdge, Freeze) == []
    assert sent(effects)[-1] == asked


def test_after_a_restart_the_logged_answer_is_still_given():
    node = responder()
    asked = request()
    reply, _ = apply_request(node, say(node, 0, asked))
    again = make_node(1, 0, fresh=False, version=1, records={0: node.edges[0].exchange.record})
    effects = open_session(again, 0, greeting=hello(pending=1, request_digest=asked.digest))
    assert only(effects, ResetEdge) == []
    assert say(again, 0, asked) == [Send(peer=0, session=1, message=reply)]


def test_after_a_restart_without_replicas_the_edge_begins_anew():
    record = EdgeRecord(incarnation=2, has_replicas=False)
    node = make_node(1, 0, fresh=False, version=9, rounds_done=9, records={0: record})
    effects = open_session(node, 0, greeting=hello(incarnation=2))
    assert only(effects, ResetEdge) == [ResetEdge(peer=0, incarnation=3)]
    assert node.edges[0].exchange.record.has_replicas
    assert only(say(node, 0, request(incarnation=3)), ApplyRequest)


def test_a_restarted_initiator_exchanges_although_the_neighbor_has_nothing_new():
    node = make_node(0, 1, fresh=False, version=9, records={1: EdgeRecord(seq=3, chain=b"c" * 16, heard=7, known=8)})
    effects = open_session(node, 1, greeting=hello(seq=3, chain=b"c" * 16))
    assert [(op.seq, op.echo, op.version) for op in only(effects, Freeze)] == [(4, 7, 9)]
    exchange_as_initiator(node, effects, version=7)
    assert say(node, 1, Ready(version=7, closing=None)) == []
