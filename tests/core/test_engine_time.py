"""No neighbor takes the engine from the others, and one with a session that never answers does not go unnoticed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from p2pfl.core.events import Alarm, ApplyRequest, MessageReceived, RequestApplied, SessionClosed, SessionOpened
from p2pfl.core.limits import ENGINE_SHARE_ALONE, ENGINE_SHARE_OF_ALL, ENGINE_WINDOW_S, EngineTime
from p2pfl.core.messages import Busy, Ready
from p2pfl.core.neighbor import LONG_ABSENCE_S, UNANSWERED_ROUNDS, UNANSWERED_S

sys.path.insert(0, str(Path(__file__).parent))
from core_kit import hello, make_node, only, open_session, reply_to, request, say, sent
from pace_kit import PacedNode, takes

COST_S = 0.05


def taken(asked, *, until_s=200.0, others=(1,)):
    """The share of the engine's time that neighbor 0 gets; `asked` gives by neighbor what of it each would take."""
    time = EngineTime()
    for peer in (0, *others):
        time.begin(peer)
    now, spent = 0.0, dict.fromkeys((0, *others), 0.0)
    while now < until_s:
        for peer, share in asked.items():
            if spent[peer] <= share * now and time.wait_s(peer, now) == 0.0:
                time.spend(peer, COST_S, now)
                spent[peer] += COST_S
        now += COST_S / 2
    return spent[0] / until_s


def test_a_neighbor_gets_a_fifth_of_the_time_beside_others_that_take_little():
    assert taken({0: 0.9, 1: 0.01}) == pytest.approx(ENGINE_SHARE_OF_ALL, rel=0.1)
    assert taken({0: 0.9, 1: 0.01, 2: 0.3}, others=(1, 2)) == pytest.approx(ENGINE_SHARE_OF_ALL, rel=0.1)


def test_a_neighbor_that_is_alone_gets_three_quarters():
    assert taken({0: 0.9}, others=()) == pytest.approx(ENGINE_SHARE_ALONE, rel=0.1)


@pytest.mark.parametrize("others", [1, 2, 3])
def test_honest_neighbors_that_keep_the_engine_at_work_all_the_time_never_wait(others):
    """Rounds of a few milliseconds: all edges take equal parts, give or take a third."""
    each = 1.0 / (others + 1)
    asked = {0: 1.3 * each} | dict.fromkeys(range(1, others + 1), each)
    assert taken(asked, others=range(1, others + 1)) == pytest.approx(1.3 * each, rel=0.02)


def test_what_was_spent_is_forgotten_and_not_by_a_new_session():
    time = EngineTime()
    time.begin(0)
    time.begin(1)
    time.spend(0, ENGINE_WINDOW_S, 0.0)
    wait_s = time.wait_s(0, 0.0)
    time.pause(0)
    time.begin(0)
    assert time.wait_s(0, 0.0) == wait_s > 1.0
    assert time.wait_s(0, wait_s + 1e-6) == 0.0
    assert time.wait_s(1, 0.0) == 0.0


def test_who_has_no_session_is_no_other():
    """Neighbor 0 may take what a neighbor may that is alone."""
    time = EngineTime()
    time.begin(0)
    time.begin(1)
    time.spend(0, (ENGINE_SHARE_OF_ALL + ENGINE_SHARE_ALONE) / 2 * ENGINE_WINDOW_S, 0.0)
    assert time.wait_s(0, 0.0) > 0.0
    time.pause(1)
    assert time.wait_s(0, 0.0) == 0.0


def test_the_dearest_requests_are_put_off_and_those_of_others_are_not():
    node = make_node(2, 0, 1)
    for peer in (0, 1):
        open_session(node, peer)
    seq = {0: 0, 1: 0}
    answers = {0: [], 1: []}
    for step in range(400):
        now = step * 0.02
        for peer, cost_s in ((0, 0.04), (1, 0.0001)):
            asked = request(seq=seq[peer] + 1)
            effects = say(node, peer, asked, now)
            answers[peer] += sent(effects)
            for op in only(effects, ApplyRequest):
                seq[peer] += 1
                reply = reply_to(op.request, version=op.version, factor=op.factor)
                applied = RequestApplied(peer=peer, request=asked, reply=reply, chain=b"c" * 16, cost_s=cost_s)
                answers[peer] += sent(node.handle(applied, now))
    assert any(isinstance(answer, Busy) for answer in answers[0])
    assert seq[0] * 0.04 < ENGINE_SHARE_OF_ALL * (ENGINE_WINDOW_S + now) + 0.1
    assert seq[1] > 390
    assert not only(answers[1], Busy)


def test_exchanges_that_the_neighbor_wishes_for_are_within_its_part_too():
    node = make_node(0, 1)
    open_session(node, 1)
    node.edges[1].exchange.engine_time.spend(1, 100.0, 0.0)
    exchange = node.edges[1].exchange
    exchange.busy = False
    exchange.record.heard = 0
    exchange.service.exchanged = node.facts.version
    assert say(node, 1, Ready(version=5)) == []


def answers_until(stops_s, takes_s=0.01):
    """Answers for that long, and never again."""
    return lambda asked: asked + takes_s if asked < stops_s else 10.0**9


def alarms_of(world, until):
    found = []
    carry_out = world.carry_out
    world.carry_out = lambda effects: (found.extend(only(effects, Alarm)), carry_out(effects))
    world.run(until)
    return [(alarm.kind, alarm.peer) for alarm in found]


def test_a_neighbor_with_a_session_that_never_answers_is_reported_once():
    world = PacedNode({1: takes(0.01), 2: answers_until(5.0)}, train_s=0.05)
    assert alarms_of(world, 45.0) == []
    assert alarms_of(world, 300.0) == [("nothing-exchanged", 2)]


@pytest.mark.long
def test_a_neighbor_that_keeps_a_session_and_never_greets_is_reported_too():
    world = PacedNode({1: takes(0.01), 2: takes(0.01)}, train_s=0.05)
    world.take(SessionOpened(peer=2, session=2))
    assert alarms_of(world, UNANSWERED_S - 1.0) == []
    assert alarms_of(world, 300.0) == [("nothing-exchanged", 2)]


def in_short_sessions(world, *, lasts_s, absent_s, greets=True):
    """The alarms in ten minutes in which each session with neighbor 2 is cut, and another one begins later."""
    found = []
    for number in range(2, int(600.0 / (lasts_s + absent_s))):
        world.take(SessionClosed(peer=2, session=number - 1))
        found += alarms_of(world, world.now + absent_s)
        world.take(SessionOpened(peer=2, session=number))
        if greets:
            world.take(MessageReceived(peer=2, session=number, message=hello()))
        found += alarms_of(world, world.now + lasts_s)
    return found


@pytest.mark.long
@pytest.mark.parametrize("greets", [False, True])
@pytest.mark.parametrize("absent_s", [0.1, 50.0])
def test_whose_sessions_are_all_cut_before_anything_is_exchanged_is_reported_once(greets, absent_s):
    """Somebody on the way could do that, and the sessions alone look like a bad line."""
    world = PacedNode({1: takes(0.01), 2: answers_until(0.0)}, train_s=0.5)
    assert in_short_sessions(world, lasts_s=40.0, absent_s=absent_s, greets=greets) == [("nothing-exchanged", 2)]


def test_who_is_away_for_long_now_and_then_is_reported_for_that_elsewhere():
    world = PacedNode({1: takes(0.01), 2: answers_until(0.0)}, train_s=0.5)
    assert in_short_sessions(world, lasts_s=40.0, absent_s=LONG_ABSENCE_S) == []


def test_a_neighbor_that_is_merely_slow_is_not():
    """Rounds of 50 ms, and exchanges of 20 s."""
    assert alarms_of(PacedNode({1: takes(0.01), 2: takes(20.0)}, train_s=0.05), 300.0) == []


def test_few_long_rounds_without_an_answer_are_not_enough():
    world = PacedNode({1: takes(0.01), 2: answers_until(0.0)}, train_s=60.0)
    assert alarms_of(world, 60.0 * (UNANSWERED_ROUNDS - 1)) == []
    assert UNANSWERED_S < 60.0
    assert alarms_of(world, 60.0 * (UNANSWERED_ROUNDS + 3)) == [("nothing-exchanged", 2)]


def test_no_round_waits_for_a_neighbor_that_is_put_off():
    alone = PacedNode({1: takes(0.01)}, train_s=0.01).run(20.0)
    world = PacedNode({1: takes(0.01), 2: takes(0.5)}, train_s=0.01)
    world.node.edges[2].exchange.engine_time.spend(2, 1e9, 0.0)
    assert world.run(20.0) > 0.9 * alone
