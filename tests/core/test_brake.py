"""An edge that keeps falling apart rests: resyncs are counted, braked and bounded in number for ever."""

from __future__ import annotations

import sys
from pathlib import Path

from p2pfl.core.events import Alarm, CloseSession, ResetEdge, SessionOpened
from p2pfl.core.limits import HOLD_S, RESYNC_WINDOW_S, RESYNCS_PER_WINDOW, ResyncBrake, TokenBucket
from p2pfl.core.messages import Resync

sys.path.insert(0, str(Path(__file__).parent))
from core_kit import hello, only, open_session, responder, say


def test_a_few_resyncs_in_a_minute_are_borne_and_one_more_is_not():
    brake = ResyncBrake()
    assert [brake.count(float(second)) for second in range(RESYNCS_PER_WINDOW + 1)] == [False] * 5 + [True]
    assert brake.held_until == RESYNCS_PER_WINDOW + HOLD_S


def test_resyncs_that_are_far_apart_never_brake():
    brake = ResyncBrake()
    assert not any(brake.count(k * (RESYNC_WINDOW_S / RESYNCS_PER_WINDOW + 0.1)) for k in range(100))


def test_a_storm_of_resyncs_ends_the_session_and_raises_an_alarm():
    node = responder()
    for incarnation in range(1, RESYNCS_PER_WINDOW + 1):
        assert only(say(node, 0, Resync(incarnation=incarnation)), CloseSession) == []
    effects = say(node, 0, Resync(incarnation=6))
    assert only(effects, CloseSession) == [CloseSession(peer=0, session=1, reason="resyncs repeat")]
    assert [alarm.kind for alarm in only(effects, Alarm)] == ["resync", "resync-storm"]
    assert node.edges[0].line.session is None


def test_a_resting_edge_takes_no_session_until_the_rest_is_over():
    node = responder()
    for incarnation in range(1, RESYNCS_PER_WINDOW + 2):
        say(node, 0, Resync(incarnation=incarnation))
    refused = node.handle(SessionOpened(peer=0, session=2), HOLD_S - 0.1)
    assert refused == [CloseSession(peer=0, session=2, reason="resting")]
    effects = open_session(node, 0, HOLD_S, session=3, greeting=hello(incarnation=6))
    assert only(effects, CloseSession) == []
    assert node.edges[0].is_open


def test_a_neighbor_that_resyncs_without_pause_costs_a_bounded_number_of_resyncs():
    node, resets, session, now = responder(), 0, 1, 0.0
    for incarnation in range(1, 5001):
        now += 0.1
        if node.edges[0].line.session is None:
            session += 1
            greeting = hello(incarnation=node.edges[0].exchange.record.incarnation)
            open_session(node, 0, now, session, greeting)
        resets += len(only(say(node, 0, Resync(incarnation=incarnation), now, session), ResetEdge))
    assert resets <= (now / HOLD_S + 1) * (RESYNCS_PER_WINDOW + 1)


def test_a_token_bucket_gives_its_burst_and_then_its_rate():
    bucket = TokenBucket(10.0)
    given = sum(bucket.take(step / 1000) == 0.0 for step in range(5001))
    assert 32 + 49 <= given <= 32 + 50


def test_the_wait_that_a_token_bucket_names_is_enough():
    bucket = TokenBucket(3.0)
    while (wait_s := bucket.take(0.0)) == 0.0:
        pass
    assert bucket.take(wait_s + 1e-9) == 0.0
