"""Standing: what no honest node does leads to quarantine and back; what an honest node may do never counts."""

from __future__ import annotations

import pytest
from core_kit import (
    apply_request,
    commit,
    exchange_as_initiator,
    freeze,
    has_completed,
    hello,
    initiator,
    make_node,
    only,
    open_session,
    pending_initiator,
    reply_to,
    request,
    responder,
    say,
    sent,
    started,
)

from p2pfl import core
from p2pfl.limits import FIRST_QUARANTINE_S, LONGEST_QUARANTINE_S, QUARANTINE_POINTS, RESYNC_HOLD_S
from tests.invariants import check_invariants


def alarms(effects, kind):
    return [alarm for alarm in only(effects, core.Alarm) if alarm.kind == kind]


def noted(reputation, fault, times, now=0.0):
    return [reputation.note(fault, "text", now) for _ in range(times)]


# -- the count ------------------------------------------------------------------------------------------------------


def test_five_models_that_cannot_be_lead_to_quarantine():
    assert noted(core.Reputation(), core.Fault.PAYLOAD, 5) == [False] * 4 + [True]


@pytest.mark.parametrize("fault", core.Fault)
def test_no_single_fault_of_any_kind_is_enough_and_some_number_of_each_is(fault):
    reputation = core.Reputation()
    assert not reputation.note(fault, "text", 0.0)
    assert any(noted(reputation, fault, int(QUARANTINE_POINTS / core.POINTS.get(fault, 1.0)) + 1))


def test_faults_that_are_far_apart_never_lead_to_quarantine():
    reputation = core.Reputation()
    assert not any(reputation.note(core.Fault.PAYLOAD, "text", k * core.FORGIVEN_S) for k in range(100))


def test_quarantines_last_twice_as_long_each_time_and_never_longer_than_an_hour():
    reputation, now, terms = core.Reputation(), 0.0, []
    for _ in range(9):
        while not reputation.note(core.Fault.PAYLOAD, "text", now):
            pass
        terms.append(reputation.until - now)
        now = reputation.until
    assert terms == [FIRST_QUARANTINE_S * 2**k for k in range(6)] + [LONGEST_QUARANTINE_S] * 3


def test_on_probation_fewer_faults_lead_back():
    reputation = core.Reputation()
    noted(reputation, core.Fault.PAYLOAD, 5)
    assert noted(reputation, core.Fault.PAYLOAD, 2, reputation.until) == [False, True]


def test_a_neighbor_that_behaves_is_forgiven_and_begins_with_a_short_term_again():
    reputation = core.Reputation()
    noted(reputation, core.Fault.PAYLOAD, 5)
    back = reputation.until
    assert reputation.view(back).probation
    later = back + core.PROBATION * core.FORGIVEN_S
    assert reputation.view(later).score == 1.0
    assert not reputation.view(later).probation
    noted(reputation, core.Fault.PAYLOAD, 5, later)
    assert reputation.until == later + FIRST_QUARANTINE_S


def test_what_is_still_on_its_way_in_quarantine_does_not_prolong_it():
    reputation = core.Reputation()
    noted(reputation, core.Fault.PAYLOAD, 5)
    until = reputation.until
    assert noted(reputation, core.Fault.FLOOD, 9, 1.0) == [False] * 9
    assert reputation.until == until
    assert reputation.points(until) == pytest.approx(core.PROBATION + 9 * core.POINTS[core.Fault.FLOOD])


def test_the_view_tells_all():
    reputation = core.Reputation()
    assert reputation.view(0.0).score == 1.0
    reputation.note(core.Fault.FACTOR, "factor 7", 0.0)
    view = reputation.view(0.0)
    assert (view.score, view.faults, view.latest, view.quarantined_s) == (
        1 - 2 / QUARANTINE_POINTS,
        {"factor": 1},
        "factor 7",
        0.0,
    )
    noted(reputation, core.Fault.PAYLOAD, 3)
    view = reputation.view(10.0)
    assert (view.score, view.quarantined_s, view.quarantines) == (0.0, FIRST_QUARANTINE_S - 10.0, 1)
    assert view.faults == {"payload": 3, "factor": 1}


# -- what counts ----------------------------------------------------------------------------------------------------


def refused(node, count, fault=core.Fault.PAYLOAD, now=0.0, session=1):
    """So many requests that the engine refuses, each another one; the last effects."""
    effects = []
    for step in range(count):
        asked = request(body=f"{session} {step}".encode())
        assert only(say(node, 0, asked, now, session), core.ApplyRequest)
        effects = node.handle(core.Refused(peer=0, message=asked, reason="not finite", fault=fault), now)
    return effects


def test_a_neighbor_whose_models_are_refused_is_put_into_quarantine_with_name_and_reason():
    node = responder()
    assert alarms(refused(node, 4), "quarantine") == []
    effects = refused(node, 1, now=60.0)
    (alarm,) = alarms(effects, "quarantine")
    assert alarm.peer == 0
    assert "payload 5" in alarm.text
    assert "not finite" in alarm.text
    (close,) = only(effects, core.CloseSession)
    assert (close.session, close.rest_s) == (1, FIRST_QUARANTINE_S)
    assert node.edges[0].line.session is None


def test_in_quarantine_a_session_is_closed_before_anything_is_said():
    node = responder()
    refused(node, 5)
    effects = node.handle(core.SessionOpened(peer=0, session=2), 20.0)
    assert effects == [core.CloseSession(peer=0, session=2, reason="in quarantine", rest_s=FIRST_QUARANTINE_S - 20.0)]
    assert node.handle(core.MessageReceived(peer=0, session=2, message=hello()), 20.0) == []
    check_invariants(node)


def test_after_it_the_neighbor_is_heard_again_and_one_alarm_says_so():
    node = responder()
    refused(node, 5)
    effects = open_session(node, 0, FIRST_QUARANTINE_S, 2)
    assert len(alarms(effects, "probation")) == 1
    assert node.edges[0].is_open
    check_invariants(node)
    node.handle(core.SessionClosed(peer=0, session=2), FIRST_QUARANTINE_S)
    assert alarms(open_session(node, 0, FIRST_QUARANTINE_S, 3), "probation") == []
    refused(node, 2, now=FIRST_QUARANTINE_S + 1.0, session=3)
    assert len(alarms(open_session(node, 0, 4 * FIRST_QUARANTINE_S, 4), "probation")) == 1
    now = 4 * FIRST_QUARANTINE_S
    assert apply_request(node, say(node, 0, request(), now, 4), now)


def test_one_neighbor_in_quarantine_takes_nothing_from_another():
    node = make_node(1, 0, 2)
    open_session(node, 0)
    open_session(node, 2, session=2)
    refused(node, 5)
    assert node.edges[2].is_open
    assert node.reputations(0.0)[2].score == 1.0


def test_answers_that_are_refused_lead_to_quarantine_too():
    node, effects = initiator()
    for step in range(5):
        asked, _ = freeze(node, effects, body=bytes([step]))
        answer = reply_to(asked)
        say(node, 1, answer)
        effects = node.handle(core.Refused(peer=1, message=answer, reason="too long", fault=core.Fault.PAYLOAD), 0.0)
    assert len(alarms(effects, "quarantine")) == 1
    assert not node.edges[1].is_open
    check_invariants(node)


def test_an_incarnation_out_of_range_counts():
    node = responder()
    effects = say(node, 0, core.Resync(incarnation=core.LONGEST_JUMP + 1))
    assert only(effects, core.CloseSession)
    assert node.reputations(0.0)[0].faults["counter"] == 1


def test_what_the_neighbor_sealed_and_is_no_message_counts():
    node = responder()
    node.handle(core.SessionClosed(peer=0, session=1, malformed="a frame of unknown type 77"), 0.0)
    assert node.reputations(0.0)[0].faults == {"malformed": 1}


def test_a_refusal_of_what_is_right_counts_a_little():
    node, asked = pending_initiator()
    say(node, 1, core.Ask(incarnation=0, seq=1, request_digest=asked.digest))
    assert node.reputations(0.0)[1].faults == {"resync": 1}


# -- what does not --------------------------------------------------------------------------------------------------


def test_an_edge_begun_anew_because_we_refused_a_request_does_not_count_again():
    node = responder()
    refused(node, 1, fault=None)
    say(node, 0, core.Resync(incarnation=1))
    assert node.reputations(0.0)[0].faults == {}
    say(node, 0, core.Resync(incarnation=2))
    assert node.reputations(0.0)[0].faults == {"resync": 1}
    assert node.reputations(0.0)[0].score > 0.8


def test_a_neighbor_that_restarts_with_an_older_state_again_and_again_rests_but_is_not_blamed():
    node, rests = make_node(1, 0), 0
    for life in range(200):
        now = life * 2.0
        node.handle(core.SessionClosed(peer=0, session=life), now)
        effects = open_session(node, 0, now, life + 1, hello(has_replicas=False))
        rests += len(only(effects, core.CloseSession))
    assert rests
    assert node.reputations(now)[0].faults == {}
    assert node.reputations(now)[0].quarantines == 0


def test_sessions_that_are_lost_and_silence_are_no_fault():
    node = make_node(0, 1)
    for life in range(500):
        open_session(node, 1, life * 0.1, life + 1)
        node.handle(core.SessionClosed(peer=1, session=life + 1), life * 0.1)
    assert node.reputations(50.0)[1].score == 1.0


def test_too_many_exchanges_are_put_off_and_no_fault():
    node = responder(exchanges_per_s=5.0)
    busy, seq = 0, 0
    for step in range(300):
        effects = say(node, 0, request(seq=seq + 1, echo=seq), step * 0.01)
        if only(effects, core.ApplyRequest):
            apply_request(node, effects, step * 0.01)
            seq += 1
        busy += any(isinstance(message, core.Busy) for message in sent(effects))
    assert busy > 200
    assert node.reputations(3.0)[0].score == 1.0


# -- floods ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [core.Ready(version=1), core.Done(version=1), hello(), core.Resync(incarnation=0), request(), reply_to(request())],
    ids=lambda message: type(message).__name__,
)
def test_a_flood_of_any_message_ends_the_session_and_the_second_one_leads_to_quarantine(message):
    node, now, session, heard = responder(), 0.0, 1, 0
    closes = []
    while not node.reputations(now)[0].quarantines:
        now += 1e-4
        if node.edges[0].line.session is None:
            session += 1
            open_session(node, 0, now, session)
        heard += 1
        closes += only(say(node, 0, message, now, session), core.CloseSession)
    assert node.reputations(now)[0].faults == {"flood": 2}
    assert len(closes) == 2
    assert heard < 3 * core.hearing_bucket(200.0).rate_per_s


def test_twice_what_an_honest_node_says_at_most_is_heard_for_ever():
    node = responder()
    honest_per_s = core.TELLS_PER_S + node.settings.exchanges_per_s
    for step in range(20_000):
        assert only(say(node, 0, core.Ready(version=step), step / honest_per_s / 1.9), core.CloseSession) == []


@pytest.mark.parametrize("times", [1.1, 2.0, 10.0])
def test_a_flood_at_a_steady_rate_is_found_and_leads_to_quarantine_however_little_it_exceeds_what_is_heard(times):
    """Not only a burst: who sends a tenth more than is heard for ever is found in half a minute, and again."""
    node, session = responder(), 1
    limit_per_s = core.hearing_bucket(node.settings.exchanges_per_s).rate_per_s
    for step in range(int(60 * limit_per_s)):
        now = step / limit_per_s / times
        if node.edges[0].line.session is None:
            session += 1
            open_session(node, 0, now, session)
        say(node, 0, core.Ready(version=step), now, session)
        if node.reputations(now)[0].quarantines:
            break
    assert node.reputations(now)[0].faults == {"flood": 2}
    assert now < 25.0 / (times - 1.0)


def test_a_silence_however_long_saves_up_no_more_than_a_stall():
    bucket = core.hearing_bucket(200.0)
    bucket.take(0.0)
    for silence_s in (core.LONGEST_STALL_S, 86_400.0, 30 * 86_400.0):
        heard = next(heard for heard in range(10**6) if bucket.take(silence_s))
        assert heard <= bucket.rate_per_s / core.HEARD_MULTIPLE * core.LONGEST_STALL_S + 1


def test_what_was_sent_while_this_process_hung_is_heard_at_once():
    bucket = core.hearing_bucket(200.0)
    bucket.take(0.0)
    said = int(bucket.rate_per_s / core.HEARD_MULTIPLE * core.LONGEST_STALL_S)
    assert not any(bucket.take(core.LONGEST_STALL_S) for _ in range(said))


def test_a_node_tells_of_fewer_versions_a_second_than_its_neighbor_bears():
    """However fast its rounds are."""
    node = responder()
    bucket, told = core.hearing_bucket(node.settings.exchanges_per_s), 0
    for step in range(40_000):
        now = step * 1e-4
        node.facts.version += 1
        for _ in sent(node.edges[0].begin_round(now)):
            told += 1
            assert bucket.take(now) == 0.0
    assert told >= 4 * core.TELLS_PER_S


# -- An edge that keeps falling apart rests: resyncs are counted, braked and bounded in number for ever.


def test_a_few_resyncs_in_a_minute_are_borne_and_one_more_is_not():
    resync_limit = core.ResyncLimit()
    assert [resync_limit.count(float(second)) for second in range(core.RESYNCS_PER_WINDOW + 1)] == [False] * 5 + [True]
    assert resync_limit.held_until == core.RESYNCS_PER_WINDOW + RESYNC_HOLD_S


def test_resyncs_that_are_far_apart_never_brake():
    resync_limit = core.ResyncLimit()
    assert not any(resync_limit.count(k * (core.RESYNC_WINDOW_S / core.RESYNCS_PER_WINDOW + 0.1)) for k in range(100))


def test_a_storm_of_resyncs_ends_the_session_and_raises_an_alarm():
    node = responder()
    for incarnation in range(1, core.RESYNCS_PER_WINDOW + 1):
        assert only(say(node, 0, core.Resync(incarnation=incarnation)), core.CloseSession) == []
    effects = say(node, 0, core.Resync(incarnation=6))
    assert only(effects, core.CloseSession) == [core.CloseSession(peer=0, session=1, reason="resyncs repeat")]
    assert [alarm.kind for alarm in only(effects, core.Alarm)] == ["resync", "resync-storm"]
    assert node.edges[0].line.session is None


def test_a_resting_edge_takes_no_session_until_the_rest_is_over():
    node = responder()
    for incarnation in range(1, core.RESYNCS_PER_WINDOW + 2):
        say(node, 0, core.Resync(incarnation=incarnation))
    refused = node.handle(core.SessionOpened(peer=0, session=2), RESYNC_HOLD_S - 0.1)
    assert refused == [core.CloseSession(peer=0, session=2, reason="resting")]
    effects = open_session(node, 0, RESYNC_HOLD_S, session=3, greeting=hello(incarnation=6))
    assert only(effects, core.CloseSession) == []
    assert node.edges[0].is_open


def test_a_neighbor_that_resyncs_without_pause_costs_a_bounded_number_of_resyncs():
    node, resets, session, now = responder(), 0, 1, 0.0
    for incarnation in range(1, 5001):
        now += 0.1
        if node.edges[0].line.session is None:
            session += 1
            greeting = hello(incarnation=node.edges[0].exchange.record.incarnation)
            open_session(node, 0, now, session, greeting)
        resets += len(only(say(node, 0, core.Resync(incarnation=incarnation), now, session), core.ResetEdge))
    assert resets <= (now / RESYNC_HOLD_S + 1) * (core.RESYNCS_PER_WINDOW + 1)


def test_a_token_bucket_gives_its_burst_and_then_its_rate():
    bucket = core.TokenBucket(10.0)
    given = sum(bucket.take(step / 1000) == 0.0 for step in range(5001))
    assert 32 + 49 <= given <= 32 + 50


def test_the_wait_that_a_token_bucket_names_is_enough():
    bucket = core.TokenBucket(3.0)
    while (wait_s := bucket.take(0.0)) == 0.0:
        pass
    assert bucket.take(wait_s + 1e-9) == 0.0


# -- Nobody waits for a neighbor in quarantine: a liar that gets itself thrown out must not hold up start or end.

LIAR = 2


def throw_out(node, now=0.0):
    """Enough proven faults of neighbor 2."""
    edge = node.edges[LIAR]
    effects = []
    while not edge.line.reputation.is_out:
        effects += edge.exchange.blame(core.Fault.PAYLOAD, "no numbers", now)
    return effects + node.wake(now)


def test_the_start_waits_for_an_absent_neighbor_and_not_for_one_thrown_out():
    node = make_node(0, 1, LIAR, start_wait_s=60.0)
    effects = started(node) + open_session(node, 1)
    assert only(effects, core.StartRound) == []
    assert node.rounds.phase is core.Phase.WAITING
    assert len(only(throw_out(node, 1.0), core.StartRound)) == 1


def test_the_start_waits_for_no_edge_that_rests_because_it_falls_apart_again_and_again():
    node = make_node(0, 1, LIAR, start_wait_s=60.0)
    effects = started(node) + open_session(node, 1) + open_session(node, LIAR)
    for incarnation in range(1, 7):
        effects += node.edges[LIAR].exchange.resync(incarnation, "again", 0.1)
    assert len(only(effects + node.wake(0.2), core.StartRound)) == 1
    assert not node.edges[LIAR].line.reputation.is_out
    assert only(node.handle(core.SessionOpened(peer=LIAR, session=2), 1.0), core.CloseSession)
    assert not core.is_behind(node.edges[LIAR], 0)
    node.handle(core.SessionOpened(peer=LIAR, session=3), 100.0)
    assert core.is_behind(node.edges[LIAR], 0)


def test_one_that_came_and_told_no_level_does_not_hold_the_start_up_once_it_is_out():
    node = make_node(0, 1, LIAR, start_wait_s=60.0, hops=2)
    effects = started(node) + open_session(node, LIAR)
    assert only(throw_out(node, 0.5) + effects, core.StartRound) == []
    assert len(only(open_session(node, 1, 1.0, greeting=hello(level=1)), core.StartRound)) == 1


def test_the_end_does_not_wait_for_one_that_is_out():
    node = make_node(0, 1, LIAR, rounds=1, closing_rounds=0, linger_s=1000.0)
    has_completed(node, 1)
    effects = started(node) + open_session(node, 1)
    throw_out(node)
    exchange_as_initiator(node, effects)
    effects = commit(node, node.handle(core.RoundTrained(steps=1, samples=30), 1.0), 1.0)
    exchange_as_initiator(node, effects, 1.0)
    assert node.rounds.phase is core.Phase.LINGERING
    assert len(only(say(node, 1, core.Done(version=1), 2.0), core.Finish)) == 1


def test_one_that_has_come_back_is_waited_for_again():
    node = make_node(0, LIAR, start_wait_s=600.0)
    started(node)
    throw_out(node)
    edge = node.edges[LIAR]
    assert not core.is_behind(edge, 0)
    node.handle(core.SessionOpened(peer=LIAR, session=2), edge.line.reputation.until + 1.0)
    assert core.is_behind(edge, 0)
