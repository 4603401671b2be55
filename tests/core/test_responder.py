"""The responder's rows of the transaction table: apply once, repeat for free, refuse, put off."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from p2pfl.core.events import Alarm, ApplyRequest, Refused, ResetEdge, Send
from p2pfl.core.limits import BURST
from p2pfl.core.messages import Ask, Busy, Resync

sys.path.insert(0, str(Path(__file__).parent))
from core_kit import WEIGHT, apply_request, only, reply_to, request, responder, say, sent


def test_first_contact_applies_with_factor_zero():
    node = responder()
    asked = request(staleness=1.0)
    assert say(node, 0, asked) == [
        ApplyRequest(peer=0, request=asked, factor=0.0, weight=node.facts.weight, version=0, pace_s=0.0)
    ]


def test_what_was_applied_is_answered_and_remembered():
    node = responder()
    asked = request(version=9)
    reply, effects = apply_request(node, say(node, 0, asked), chain=b"d" * 16)
    assert effects == [Send(peer=0, session=1, message=reply)]
    record = node.edges[0].exchange.record
    assert (record.seq, record.reply, record.request_digest, record.heard) == (1, reply, asked.digest, 9)
    assert record.chain == b"d" * 16


def test_the_factor_is_gamma_times_the_smaller_weight_times_the_smaller_staleness():
    node = responder(gamma=0.5)
    apply_request(node, say(node, 0, request()))
    node.facts.version = 7
    (op,) = only(say(node, 0, request(seq=2, echo=0, weight=4.0, staleness=0.25)), ApplyRequest)
    assert op.factor == 0.5 * 4.0 * 0.25
    apply_request(node, [op])
    (op,) = only(say(node, 0, request(seq=3, echo=0, weight=400.0, staleness=1.0)), ApplyRequest)
    assert op.factor == 0.5 * WEIGHT * (7 - 3) ** -0.5


def test_a_request_seen_before_gets_the_logged_answer_however_often_it_comes():
    node = responder()
    asked = request()
    reply, _ = apply_request(node, say(node, 0, asked))
    for _ in range(5):
        assert say(node, 0, asked) == [Send(peer=0, session=1, message=reply)]


def test_a_repeated_answer_costs_nothing_even_when_no_token_is_left():
    node = responder()
    asked = request()
    reply, _ = apply_request(node, say(node, 0, asked))
    node.edges[0].exchange.bucket.tokens = 0.0
    assert say(node, 0, asked) == [Send(peer=0, session=1, message=reply)]
    assert sent(say(node, 0, request(seq=2)))[0].seq == 2
    assert say(node, 0, asked) == [Send(peer=0, session=1, message=reply)]


def test_repeated_answers_leave_the_tokens_for_new_requests():
    node = responder()
    asked = request()
    apply_request(node, say(node, 0, asked))
    node.edges[0].exchange.bucket.tokens = 1.0
    for _ in range(3):
        say(node, 0, asked)
    assert only(say(node, 0, request(seq=2)), ApplyRequest)


def test_a_request_beyond_the_rate_is_put_off_until_there_is_a_token():
    node = responder(exchanges_per_s=4.0)
    seq = 0
    while True:
        seq += 1
        effects = say(node, 0, request(seq=seq))
        if not only(effects, ApplyRequest):
            break
        apply_request(node, effects)
    assert seq == BURST + 1
    assert effects == [Send(peer=0, session=1, message=Busy(incarnation=0, seq=seq, retry_after_s=0.25))]
    assert only(say(node, 0, request(seq=seq), now=0.2), ApplyRequest) == []
    assert only(say(node, 0, request(seq=seq), now=0.25), ApplyRequest)


def test_an_older_request_is_ignored():
    node = responder()
    first, second = request(), request(seq=2)
    apply_request(node, say(node, 0, first))
    apply_request(node, say(node, 0, second))
    assert say(node, 0, first) == []


def test_a_request_of_an_older_incarnation_is_told_the_new_one():
    node = responder()
    say(node, 0, Resync(incarnation=3))
    assert say(node, 0, request(incarnation=2)) == [Send(peer=0, session=1, message=Resync(incarnation=3))]
    assert node.edges[0].exchange.record.seq == 0


def test_a_request_of_a_newer_incarnation_is_adopted_and_applied():
    node = responder()
    apply_request(node, say(node, 0, request()))
    asked = request(incarnation=2)
    effects = say(node, 0, asked)
    assert [type(effect) for effect in effects] == [ResetEdge, Alarm, ApplyRequest]
    assert effects[0] == ResetEdge(peer=0, incarnation=2)
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
    ask = Ask(incarnation=0, seq=wrong.seq, request_digest=wrong.digest)
    assert say(node, 0, wrong) == [Send(peer=0, session=1, message=ask)]
    assert (node.edges[0].exchange.record.seq, node.edges[0].exchange.record.reply) == (1, reply)


def test_a_request_that_failed_a_check_is_asked_back_and_never_tried_again():
    node = responder()
    asked = request()
    say(node, 0, asked)
    ask = Send(peer=0, session=1, message=Ask(incarnation=0, seq=1, request_digest=asked.digest))
    alarm = Alarm(kind="request-refused", peer=0, text="too long")
    assert node.handle(Refused(peer=0, message=asked, reason="too long"), 0.0) == [alarm, ask]
    assert say(node, 0, asked) == [ask]
    assert only(say(node, 0, request(body=b"better")), ApplyRequest)


def test_a_new_incarnation_forgets_what_was_refused():
    node = responder()
    asked = request()
    say(node, 0, asked)
    node.handle(Refused(peer=0, message=asked, reason="too long"), 0.0)
    say(node, 0, Resync(incarnation=1))
    assert node.edges[0].exchange.refused == b""


def test_a_responder_sends_no_request_of_its_own_and_takes_no_answer():
    node = responder()
    assert only(say(node, 0, reply_to(request())), ApplyRequest) == []
    assert node.edges[0].exchange.record.pending is None


def test_requests_that_come_while_the_engine_works_wait_their_turn():
    node = responder()
    effects = say(node, 0, request())
    assert say(node, 0, request(seq=2)) == []
    assert say(node, 0, request(seq=2)) == [], "what is sent again is not kept twice"
    reply, effects = apply_request(node, effects)
    assert effects[0] == Send(peer=0, session=1, message=reply)
    assert [op.request for op in only(effects, ApplyRequest)] == [request(seq=2)]
