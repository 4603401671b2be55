"""The initiator's rows of the transaction table: freeze, repeat, settle, give up."""

from __future__ import annotations

import pytest
from core_kit import (
    WEIGHT,
    apply_reply,
    apply_request,
    exchange_as_initiator,
    freeze,
    initiator,
    only,
    own_hello,
    pending_initiator,
    reply_to,
    request,
    responder,
    say,
    sent,
)
from hypothesis import given
from hypothesis import strategies as st

from p2pfl import core
from p2pfl.limits import MESSAGE_BURST


def test_first_contact_freezes_request_one_with_staleness_weight_zero_and_an_audit():
    _, effects = initiator()
    assert effects == [
        core.Send(peer=1, session=1, message=own_hello()),
        core.Send(peer=1, session=1, message=own_hello(have_yours=True)),
        core.Freeze(
            peer=1, incarnation=0, seq=1, version=0, echo=None, weight=WEIGHT, staleness=0.0, pace_s=0.0, audit=True
        ),
    ]


def test_a_frozen_request_is_sent_and_sent_again_the_same_until_it_is_answered():
    node, effects = initiator()
    asked, effects = freeze(node, effects)
    again = [core.Send(peer=1, session=1, message=asked)]
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
    assert say(node, 1, core.Ready(version=7)) == []


def test_the_answer_is_applied_and_settles_the_transaction():
    node, asked = pending_initiator()
    answer = reply_to(asked, version=4)
    effects = say(node, 1, answer)
    assert effects == [core.ApplyReply(peer=1, reply=answer)]
    assert apply_reply(node, effects, chain=b"d" * 16) == []
    record = node.edges[1].exchange.record
    assert (record.seq, record.pending, record.heard, record.known) == (1, None, 4, 0)
    assert (record.chain, record.chain_before) == (b"d" * 16, core.NO_CHAIN)
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
    asked, _ = freeze(node, say(node, 1, core.Ready(version=2)))
    assert asked.staleness == 1.0
    return node, asked


def test_the_largest_factor_that_the_frozen_request_allows_is_applied():
    node, asked = second_request(gamma=0.7)
    answer = reply_to(asked, factor=0.7 * asked.weight * asked.staleness)
    assert say(node, 1, answer) == [core.ApplyReply(peer=1, reply=answer)]


def test_the_bound_of_the_factor_is_that_of_the_freezing_not_of_today():
    node, asked = second_request()
    node.facts.samples = 1000.0
    assert only(say(node, 1, reply_to(asked, factor=100.0)), core.ApplyReply) == []
    node, asked = second_request()
    node.facts.samples = 1.0
    assert only(say(node, 1, reply_to(asked, factor=WEIGHT)), core.ApplyReply)


@pytest.mark.parametrize("factor", [WEIGHT * (1 + 1e-15), -1e-300, float("nan"), float("inf")])
def test_a_factor_out_of_bounds_is_never_applied_but_leads_to_a_new_incarnation(factor):
    node, asked = second_request()
    effects = say(node, 1, reply_to(asked, factor=factor))
    assert only(effects, core.ApplyReply) == []
    assert effects[0] == core.ResetEdge(peer=1, incarnation=1)
    assert only(effects, core.Alarm)[0].kind == "resync"
    assert sent(effects) == [core.Resync(incarnation=1)]
    assert [(op.incarnation, op.seq, op.staleness) for op in only(effects, core.Freeze)] == [(1, 1, 0.0)]


def test_an_answer_whose_values_the_engine_refuses_leads_to_a_new_incarnation():
    node, asked = pending_initiator()
    answer = reply_to(asked)
    say(node, 1, answer)
    effects = node.handle(core.Refused(peer=1, message=answer, reason="not finite"), 0.0)
    assert [alarm.kind for alarm in only(effects, core.Alarm)] == ["reply-refused", "resync"]
    assert only(effects, core.ResetEdge) == [core.ResetEdge(peer=1, incarnation=1)]
    assert sent(effects) == [core.Resync(incarnation=1)]


def test_an_ask_for_the_very_pending_request_leads_to_a_new_incarnation():
    node, asked = pending_initiator()
    effects = say(node, 1, core.Ask(incarnation=0, seq=1, request_digest=asked.digest))
    assert only(effects, core.ResetEdge) == [core.ResetEdge(peer=1, incarnation=1)]
    assert sent(effects) == [core.Resync(incarnation=1)]


@pytest.mark.parametrize("change", [{"incarnation": 1}, {"seq": 2}, {"request_digest": b"other-request-xx"}])
def test_an_ask_for_anything_else_is_ignored(change):
    node, asked = pending_initiator()
    plain = {"incarnation": 0, "seq": 1, "request_digest": asked.digest}
    assert say(node, 1, core.Ask(**(plain | change))) == []
    assert node.edges[1].exchange.record.pending == asked


def test_an_ask_after_the_answer_is_ignored():
    node, asked = pending_initiator()
    apply_reply(node, say(node, 1, reply_to(asked)))
    assert say(node, 1, core.Ask(incarnation=0, seq=1, request_digest=asked.digest)) == []


def test_busy_puts_off_the_same_bytes():
    node, asked = pending_initiator()
    assert say(node, 1, core.Busy(incarnation=0, seq=1, retry_after_s=7.0)) == []
    assert node.deadline() == 7.0
    assert node.wake(6.9) == []
    assert node.wake(7.0) == [core.Send(peer=1, session=1, message=asked)]


@pytest.mark.parametrize("change", [{"incarnation": 1}, {"seq": 2}])
def test_busy_for_another_request_is_ignored(change):
    node, _ = pending_initiator()
    say(node, 1, core.Busy(**({"incarnation": 0, "seq": 1, "retry_after_s": 7.0} | change)))
    assert node.deadline() == 1.0


def test_a_newer_incarnation_of_the_neighbor_is_adopted_and_begins_at_one():
    node, _ = pending_initiator()
    effects = say(node, 1, core.Resync(incarnation=5))
    assert only(effects, core.ResetEdge) == [core.ResetEdge(peer=1, incarnation=5)]
    assert [(op.incarnation, op.seq) for op in only(effects, core.Freeze)] == [(5, 1)]
    assert sent(effects) == []


@pytest.mark.parametrize("incarnation", [0, 4, 5])
def test_a_resync_that_is_not_newer_changes_nothing(incarnation):
    node, _ = pending_initiator()
    asked, _ = freeze(node, say(node, 1, core.Resync(incarnation=5)))
    assert say(node, 1, core.Resync(incarnation=incarnation)) == []
    assert node.edges[1].exchange.record.incarnation == 5
    assert node.edges[1].exchange.record.pending == asked


def test_a_resync_says_what_it_ended():
    node, effects = initiator()
    exchange_as_initiator(node, effects)
    freeze(node, say(node, 1, core.Ready(version=2)))
    (alarm,) = only(say(node, 1, core.Resync(incarnation=1)), core.Alarm)
    assert "incarnation 0 ended after 1 transactions, request 2 dropped" in alarm.text
    assert node.edges[1].exchange.record.resyncs == 1


def test_an_initiator_answers_no_request():
    node, _ = initiator()
    assert node.handle(core.MessageReceived(peer=1, session=1, message=request()), 0.0) == []


def test_every_sixty_fourth_transaction_is_audited():
    node, effects = initiator(audit_every=4)
    audits = []
    for version in range(9):
        audits.append(only(effects, core.Freeze)[0].audit)
        effects = exchange_as_initiator(node, effects, version=version)
        effects += say(node, 1, core.Ready(version=version + 1))
    assert audits == [True, False, False, True, False, False, False, True, False]


def test_once_answers_were_timed_a_request_is_repeated_as_soon_as_its_answer_is_late():
    node, asked = pending_initiator()
    effects = say(node, 1, reply_to(asked), now=0.1)
    apply_reply(node, effects, now=0.1)
    asked, _ = freeze(node, say(node, 1, core.Ready(version=9), now=0.2), now=0.2)
    assert node.deadline() == pytest.approx(0.2 + 0.1 + 4 * 0.05)
    assert sent(node.wake(node.deadline())) == [asked]


def test_the_answer_to_a_request_that_was_sent_twice_measures_nothing():
    node, asked = pending_initiator()
    node.wake(1.0)
    effects = say(node, 1, reply_to(asked), now=1.01)
    apply_reply(node, effects, now=1.01)
    asked, _ = freeze(node, say(node, 1, core.Ready(version=9), now=1.1), now=1.1)
    assert node.deadline() == pytest.approx(1.1 + 2.0)


# -- The responder's rows of the transaction table: apply once, repeat for free, refuse, put off.


def test_first_contact_applies_with_factor_zero():
    node = responder()
    asked = request(staleness=1.0)
    assert say(node, 0, asked) == [
        core.ApplyRequest(peer=0, request=asked, factor=0.0, weight=node.facts.weight, version=0, pace_s=0.0)
    ]


def test_what_was_applied_is_answered_and_remembered():
    node = responder()
    asked = request(version=9)
    reply, effects = apply_request(node, say(node, 0, asked), chain=b"d" * 16)
    assert effects == [core.Send(peer=0, session=1, message=reply)]
    record = node.edges[0].exchange.record
    assert (record.seq, record.reply, record.request_digest, record.heard) == (1, reply, asked.digest, 9)
    assert record.chain == b"d" * 16


def test_the_factor_is_gamma_times_the_smaller_weight_times_the_smaller_staleness():
    node = responder(gamma=0.5)
    apply_request(node, say(node, 0, request()))
    node.facts.version = 7
    (op,) = only(say(node, 0, request(seq=2, echo=0, weight=4.0, staleness=0.25)), core.ApplyRequest)
    assert op.factor == 0.5 * 4.0 * 0.25
    apply_request(node, [op])
    (op,) = only(say(node, 0, request(seq=3, echo=0, weight=400.0, staleness=1.0)), core.ApplyRequest)
    assert op.factor == 0.5 * WEIGHT * (7 - 3) ** -0.5


def test_a_request_seen_before_gets_the_logged_answer_however_often_it_comes():
    node = responder()
    asked = request()
    reply, _ = apply_request(node, say(node, 0, asked))
    for _ in range(5):
        assert say(node, 0, asked) == [core.Send(peer=0, session=1, message=reply)]


def test_a_repeated_answer_costs_nothing_even_when_no_token_is_left():
    node = responder()
    asked = request()
    reply, _ = apply_request(node, say(node, 0, asked))
    node.edges[0].exchange.bucket.tokens = 0.0
    assert say(node, 0, asked) == [core.Send(peer=0, session=1, message=reply)]
    assert sent(say(node, 0, request(seq=2)))[0].seq == 2
    assert say(node, 0, asked) == [core.Send(peer=0, session=1, message=reply)]


def test_repeated_answers_leave_the_tokens_for_new_requests():
    node = responder()
    asked = request()
    apply_request(node, say(node, 0, asked))
    node.edges[0].exchange.bucket.tokens = 1.0
    for _ in range(3):
        say(node, 0, asked)
    assert only(say(node, 0, request(seq=2)), core.ApplyRequest)


def test_a_request_beyond_the_rate_is_put_off_until_there_is_a_token():
    node = responder(exchanges_per_s=4.0)
    seq = 0
    while True:
        seq += 1
        effects = say(node, 0, request(seq=seq))
        if not only(effects, core.ApplyRequest):
            break
        apply_request(node, effects)
    assert seq == MESSAGE_BURST + 1
    assert effects == [core.Send(peer=0, session=1, message=core.Busy(incarnation=0, seq=seq, retry_after_s=0.25))]
    assert only(say(node, 0, request(seq=seq), now=0.2), core.ApplyRequest) == []
    assert only(say(node, 0, request(seq=seq), now=0.25), core.ApplyRequest)


def test_an_older_request_is_ignored():
    node = responder()
    first, second = request(), request(seq=2)
    apply_request(node, say(node, 0, first))
    apply_request(node, say(node, 0, second))
    assert say(node, 0, first) == []


def test_a_request_of_an_older_incarnation_is_told_the_new_one():
    node = responder()
    say(node, 0, core.Resync(incarnation=3))
    assert say(node, 0, request(incarnation=2)) == [core.Send(peer=0, session=1, message=core.Resync(incarnation=3))]
    assert node.edges[0].exchange.record.seq == 0


def test_a_request_of_a_newer_incarnation_is_adopted_and_applied():
    node = responder()
    apply_request(node, say(node, 0, request()))
    asked = request(incarnation=2)
    effects = say(node, 0, asked)
    assert [type(effect) for effect in effects] == [core.ResetEdge, core.Alarm, core.ApplyRequest]
    assert effects[0] == core.ResetEdge(peer=0, incarnation=2)
    assert effects[2].factor == 0.0
    reply, _ = apply_request(node, effects)
    assert node.edges[0].exchange.record.reply == reply


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"seq": 1, "body": b"other"}, id="other bytes under the last number"),
        pytest.param({"seq": 3}, id="a number left out"),
        pytest.param({"seq": 2**53 - 1}, id="the largest number"),
    ],
)
def test_what_cannot_be_the_next_request_is_asked_back_and_leaves_no_trace(change):
    node = responder()
    reply, _ = apply_request(node, say(node, 0, request()))
    wrong = request(**change)
    ask = core.Ask(incarnation=0, seq=wrong.seq, request_digest=wrong.digest)
    assert say(node, 0, wrong) == [core.Send(peer=0, session=1, message=ask)]
    assert (node.edges[0].exchange.record.seq, node.edges[0].exchange.record.reply) == (1, reply)


def test_a_request_that_failed_a_check_is_asked_back_and_never_tried_again():
    node = responder()
    asked = request()
    say(node, 0, asked)
    ask = core.Send(peer=0, session=1, message=core.Ask(incarnation=0, seq=1, request_digest=asked.digest))
    alarm = core.Alarm(kind="request-refused", peer=0, text="too long")
    assert node.handle(core.Refused(peer=0, message=asked, reason="too long"), 0.0) == [alarm, ask]
    assert say(node, 0, asked) == [ask]
    assert only(say(node, 0, request(body=b"better")), core.ApplyRequest)


def test_a_new_incarnation_forgets_what_was_refused():
    node = responder()
    asked = request()
    say(node, 0, asked)
    node.handle(core.Refused(peer=0, message=asked, reason="too long"), 0.0)
    say(node, 0, core.Resync(incarnation=1))
    assert node.edges[0].exchange.refused == b""


def test_a_responder_sends_no_request_of_its_own_and_takes_no_answer():
    node = responder()
    assert only(say(node, 0, reply_to(request())), core.ApplyRequest) == []
    assert node.edges[0].exchange.record.pending is None


def test_requests_that_come_while_the_engine_works_wait_their_turn():
    node = responder()
    effects = say(node, 0, request())
    assert say(node, 0, request(seq=2)) == []
    assert say(node, 0, request(seq=2)) == [], "what is sent again is not kept twice"
    reply, effects = apply_request(node, effects)
    assert effects[0] == core.Send(peer=0, session=1, message=reply)
    assert [op.request for op in only(effects, core.ApplyRequest)] == [request(seq=2)]


# -- Staleness by causality: what an exchange weighs, and that no edge locks itself out.

LEAST = (core.LIMIT - 3) ** -0.5


def next_freeze(node, version):
    return only(say(node, 1, core.Ready(version=version, closing=None)), core.Freeze)


@pytest.mark.parametrize(("rounds", "weight"), [(0, 1.0), (4, 1.0), (5, 2**-0.5), (64, LEAST), (65, 0.0)])
def test_the_initiator_counts_rounds_since_the_version_that_the_neighbor_has(rounds, weight):
    node, effects = initiator()
    exchange_as_initiator(node, effects)
    exchange_as_initiator(node, next_freeze(node, 2), version=2, factor=1.0)
    node.facts.version += rounds
    (op,) = next_freeze(node, 3)
    assert op.staleness == pytest.approx(weight)


@pytest.mark.parametrize(("rounds", "weight"), [(0, 1.0), (4, 1.0), (5, 2**-0.5), (64, LEAST), (65, 0.0)])
def test_the_responder_counts_rounds_since_the_version_that_the_request_echoes(rounds, weight):
    node = responder()
    node.facts.version = 10
    apply_request(node, say(node, 0, request()))
    apply_request(node, say(node, 0, request(seq=2, echo=10, staleness=1.0)))
    node.facts.version += rounds
    (op,) = only(say(node, 0, request(seq=3, echo=10, staleness=1.0)), core.ApplyRequest)
    assert op.factor == pytest.approx(15.0 * weight)


def test_after_an_exchange_of_weight_zero_the_next_one_weighs_something_however_late():
    node, effects = initiator()
    exchange_as_initiator(node, effects)
    node.facts.version += 10_000
    (op,) = next_freeze(node, 2)
    assert op.staleness == pytest.approx(LEAST)
    node = responder()
    apply_request(node, say(node, 0, request()))
    node.facts.version += 10_000
    (op,) = only(say(node, 0, request(seq=2, echo=0, staleness=1.0)), core.ApplyRequest)
    assert op.factor == pytest.approx(15.0 * LEAST)


def test_an_echo_from_the_future_is_no_older_than_now():
    node = responder()
    apply_request(node, say(node, 0, request()))
    (op,) = only(say(node, 0, request(seq=2, echo=2**53 - 1, staleness=1.0)), core.ApplyRequest)
    assert op.factor == 15.0


# -- How long a request waits for its answer before it is sent again: RFC 6298, per edge.

times = st.floats(min_value=0.0, max_value=20.0)


def test_the_estimate_is_that_of_rfc_6298():
    timer = core.ResendTimer()
    timer.note(0.4)
    assert timer.wait_s == pytest.approx(0.4 + 4 * 0.2)
    timer.note(0.8)
    deviation_s = 0.75 * 0.2 + 0.25 * 0.4
    assert timer.wait_s == pytest.approx(0.875 * 0.4 + 0.125 * 0.8 + 4 * deviation_s)


@given(st.lists(times, min_size=1, max_size=50), times)
def test_a_steady_edge_is_never_asked_twice_whatever_came_before(before, steady_s):
    timer = core.ResendTimer()
    for took_s in before:
        timer.note(took_s)
    for _ in range(200):
        timer.note(steady_s)
    assert steady_s + core.RESEND_MARGIN_S <= timer.wait_s + 1e-9
    assert timer.wait_s <= core.LAST_RESEND_S


def test_answers_that_become_slow_are_asked_for_twice_once_and_then_waited_for():
    timer = core.ResendTimer()
    for _ in range(50):
        timer.note(0.01)
    asked_twice = 0
    for _ in range(20):
        if timer.wait_s < 0.5:
            asked_twice += 1
            while timer.wait_s < 0.5:
                timer.back_off()  # and the answer measures nothing
        else:
            timer.note(0.5)
    assert asked_twice == 1
