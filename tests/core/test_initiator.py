"""The initiator's rows of the transaction table: freeze, repeat, settle, give up."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from p2pfl.core.events import Alarm, ApplyReply, Freeze, MessageReceived, Refused, ResetEdge, Send
from p2pfl.core.messages import NO_CHAIN, Ask, Busy, Ready, Resync

sys.path.insert(0, str(Path(__file__).parent))
from core_kit import (
    WEIGHT,
    apply_reply,
    exchange_as_initiator,
    freeze,
    initiator,
    only,
    own_hello,
    pending_initiator,
    reply_to,
    request,
    say,
    sent,
)


def test_first_contact_freezes_request_one_with_staleness_weight_zero_and_an_audit():
    _, effects = initiator()
    assert effects == [
        Send(peer=1, session=1, message=own_hello()),
        Send(peer=1, session=1, message=own_hello(have_yours=True)),
        Freeze(
            peer=1, incarnation=0, seq=1, version=0, echo=None, weight=WEIGHT, staleness=0.0, pace_s=0.0, audit=True
        ),
    ]


def test_a_frozen_request_is_sent_and_sent_again_the_same_until_it_is_answered():
    node, effects = initiator()
    asked, effects = freeze(node, effects)
    again = [Send(peer=1, session=1, message=asked)]
    assert effects == again
    times, now = [], 0.0
    while now < 200.0:
        now = node.deadline()
        times.append(now)
        assert node.wake(now) == again
    gaps = [after - before for before, after in zip([0.0, *times], times, strict=False)]
    assert gaps == [1.0, 2.0, 4.0, 8.0, 16.0] + [30.0] * (len(gaps) - 5)


def test_nothing_is_repeated_before_its_time():
    node, _ = pending_initiator()
    assert node.wake(0.999) == []


def test_one_transaction_at_a_time():
    node, _ = pending_initiator()
    assert say(node, 1, Ready(version=7)) == []


def test_the_answer_is_applied_and_settles_the_transaction():
    node, asked = pending_initiator()
    answer = reply_to(asked, version=4)
    effects = say(node, 1, answer)
    assert effects == [ApplyReply(peer=1, reply=answer)]
    assert apply_reply(node, effects, chain=b"d" * 16) == []
    record = node.edges[1].exchange.record
    assert (record.seq, record.pending, record.heard, record.known) == (1, None, 4, 0)
    assert (record.chain, record.chain_before) == (b"d" * 16, NO_CHAIN)
    assert node.deadline() is None


def test_a_second_copy_of_the_answer_is_nothing():
    node, asked = pending_initiator()
    apply_reply(node, say(node, 1, reply_to(asked)))
    assert say(node, 1, reply_to(asked)) == []


@pytest.mark.parametrize("change", [{"incarnation": 1}, {"seq": 2}, {"request_digest": b"other-request-xx"}])
def test_an_answer_to_another_request_is_ignored(change):
    node, asked = pending_initiator()
    assert say(node, 1, reply_to(asked, **change)) == []
    assert node.edges[1].exchange.record.pending == asked


def second_request(**changes):
    """An initiator whose second request, of full weight, is out."""
    node, effects = initiator(**changes)
    exchange_as_initiator(node, effects)
    asked, _ = freeze(node, say(node, 1, Ready(version=2)))
    assert asked.staleness == 1.0
    return node, asked


def test_the_largest_factor_that_the_frozen_request_allows_is_applied():
    node, asked = second_request(gamma=0.7)
    answer = reply_to(asked, factor=0.7 * asked.weight * asked.staleness)
    assert say(node, 1, answer) == [ApplyReply(peer=1, reply=answer)]


def test_the_bound_of_the_factor_is_that_of_the_freezing_not_of_today():
    node, asked = second_request()
    node.facts.samples = 1000.0
    assert only(say(node, 1, reply_to(asked, factor=100.0)), ApplyReply) == []
    node, asked = second_request()
    node.facts.samples = 1.0
    assert only(say(node, 1, reply_to(asked, factor=WEIGHT)), ApplyReply)


@pytest.mark.parametrize("factor", [WEIGHT * (1 + 1e-15), -1e-300, float("nan"), float("inf")])
def test_a_factor_out_of_bounds_is_never_applied_but_leads_to_a_new_incarnation(factor):
    node, asked = second_request()
    effects = say(node, 1, reply_to(asked, factor=factor))
    assert only(effects, ApplyReply) == []
    assert effects[0] == ResetEdge(peer=1, incarnation=1)
    assert only(effects, Alarm)[0].kind == "resync"
    assert sent(effects) == [Resync(incarnation=1)]
    assert [(op.incarnation, op.seq, op.staleness) for op in only(effects, Freeze)] == [(1, 1, 0.0)]


def test_an_answer_whose_values_the_engine_refuses_leads_to_a_new_incarnation():
    node, asked = pending_initiator()
    answer = reply_to(asked)
    say(node, 1, answer)
    effects = node.handle(Refused(peer=1, message=answer, reason="not finite"), 0.0)
    assert [alarm.kind for alarm in only(effects, Alarm)] == ["reply-refused", "resync"]
    assert only(effects, ResetEdge) == [ResetEdge(peer=1, incarnation=1)]
    assert sent(effects) == [Resync(incarnation=1)]


def test_an_ask_for_the_very_pending_request_leads_to_a_new_incarnation():
    node, asked = pending_initiator()
    effects = say(node, 1, Ask(incarnation=0, seq=1, request_digest=asked.digest))
    assert only(effects, ResetEdge) == [ResetEdge(peer=1, incarnation=1)]
    assert sent(effects) == [Resync(incarnation=1)]


@pytest.mark.parametrize("change", [{"incarnation": 1}, {"seq": 2}, {"request_digest": b"other-request-xx"}])
def test_an_ask_for_anything_else_is_ignored(change):
    node, asked = pending_initiator()
    plain = {"incarnation": 0, "seq": 1, "request_digest": asked.digest}
    assert say(node, 1, Ask(**(plain | change))) == []
    assert node.edges[1].exchange.record.pending == asked


def test_an_ask_after_the_answer_is_ignored():
    node, asked = pending_initiator()
    apply_reply(node, say(node, 1, reply_to(asked)))
    assert say(node, 1, Ask(incarnation=0, seq=1, request_digest=asked.digest)) == []


def test_busy_puts_off_the_same_bytes():
    node, asked = pending_initiator()
    assert say(node, 1, Busy(incarnation=0, seq=1, retry_after_s=7.0)) == []
    assert node.deadline() == 7.0
    assert node.wake(6.9) == []
    assert node.wake(7.0) == [Send(peer=1, session=1, message=asked)]


@pytest.mark.parametrize("change", [{"incarnation": 1}, {"seq": 2}])
def test_busy_for_another_request_is_ignored(change):
    node, _ = pending_initiator()
    say(node, 1, Busy(**({"incarnation": 0, "seq": 1, "retry_after_s": 7.0} | change)))
    assert node.deadline() == 1.0


def test_a_newer_incarnation_of_the_neighbor_is_adopted_and_begins_at_one():
    node, _ = pending_initiator()
    effects = say(node, 1, Resync(incarnation=5))
    assert only(effects, ResetEdge) == [ResetEdge(peer=1, incarnation=5)]
    assert [(op.incarnation, op.seq) for op in only(effects, Freeze)] == [(5, 1)]
    assert sent(effects) == []


@pytest.mark.parametrize("incarnation", [0, 4, 5])
def test_a_resync_that_is_not_newer_changes_nothing(incarnation):
    node, _ = pending_initiator()
    asked, _ = freeze(node, say(node, 1, Resync(incarnation=5)))
    assert say(node, 1, Resync(incarnation=incarnation)) == []
    assert node.edges[1].exchange.record.incarnation == 5
    assert node.edges[1].exchange.record.pending == asked


def test_a_resync_says_what_it_ended():
    node, effects = initiator()
    exchange_as_initiator(node, effects)
    freeze(node, say(node, 1, Ready(version=2)))
    (alarm,) = only(say(node, 1, Resync(incarnation=1)), Alarm)
    assert "incarnation 0 ended after 1 transactions, request 2 dropped" in alarm.text
    assert node.edges[1].exchange.record.resyncs == 1


def test_an_initiator_answers_no_request():
    node, _ = initiator()
    assert node.handle(MessageReceived(peer=1, session=1, message=request()), 0.0) == []


def test_every_sixty_fourth_transaction_is_audited():
    node, effects = initiator(audit_every=4)
    audits = []
    for version in range(9):
        audits.append(only(effects, Freeze)[0].audit)
        effects = exchange_as_initiator(node, effects, version=version)
        effects += say(node, 1, Ready(version=version + 1))
    assert audits == [True, False, False, True, False, False, False, True, False]


def test_once_answers_were_timed_a_request_is_repeated_as_soon_as_its_answer_is_late():
    node, asked = pending_initiator()
    effects = say(node, 1, reply_to(asked), now=0.1)
    apply_reply(node, effects, now=0.1)
    asked, _ = freeze(node, say(node, 1, Ready(version=9), now=0.2), now=0.2)
    assert node.deadline() == pytest.approx(0.2 + 0.1 + 4 * 0.05)
    assert sent(node.wake(node.deadline())) == [asked]


def test_the_answer_to_a_request_that_was_sent_twice_measures_nothing():
    node, asked = pending_initiator()
    node.wake(1.0)
    effects = say(node, 1, reply_to(asked), now=1.01)
    apply_reply(node, effects, now=1.01)
    asked, _ = freeze(node, say(node, 1, Ready(version=9), now=1.1), now=1.1)
    assert node.deadline() == pytest.approx(1.1 + 2.0)
