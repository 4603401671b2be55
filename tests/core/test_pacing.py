"""Pacing: a tick waits for every live edge, never longer than that edge's patience, and a dead edge costs nothing."""

from __future__ import annotations

import pytest
from core_kit import (
    apply_reply,
    apply_request,
    begun_alone,
    commit,
    exchange_as_initiator,
    freeze,
    hello,
    make_node,
    only,
    open_session,
    reply_to,
    request,
    say,
    sent,
)
from pace_kit import Draws, PacedNode, stutters, takes

from p2pfl import core


def training(index, *neighbors, **changes):
    """A node in its first round, every edge open; at time 0."""
    node = make_node(index, *neighbors, **({"start_wait_s": 0.0, "rounds": 1000} | changes))
    effects = begun_alone(node)
    assert only(effects, core.StartRound) == [core.StartRound(index=0, accompanied=False)]
    return node


def ticked(node, now):
    """The round ends and is committed at `now`; what follows."""
    return commit(node, node.handle(core.RoundTrained(steps=5, samples=30), now), now)


def test_the_next_round_starts_when_every_live_edge_has_exchanged_the_new_version():
    node = training(0, 1, 2)
    first = exchange_as_initiator(node, open_session(node, 1))
    second = exchange_as_initiator(node, open_session(node, 2))
    effects = first + second + ticked(node, 1.0)
    assert only(effects, core.StartRound) == []
    frozen = {op.peer: op for op in only(effects, core.Freeze)}
    assert {op.version for op in frozen.values()} == {1}
    assert only(exchange_as_initiator(node, [frozen[1]], 1.01), core.StartRound) == []
    assert only(exchange_as_initiator(node, [frozen[2]], 1.015), core.StartRound) == [
        core.StartRound(index=1, accompanied=True)
    ]


def test_an_exchange_of_the_version_before_does_not_start_the_next_round():
    node = training(0, 1)
    asked, _ = freeze(node, open_session(node, 1))
    effects = ticked(node, 1.0)
    assert only(effects, core.Freeze, core.StartRound) == []
    effects = apply_reply(node, say(node, 1, reply_to(asked), 1.1), 1.1)
    assert [op.version for op in only(effects, core.Freeze)] == [1]
    assert only(effects, core.StartRound) == []


def test_a_tick_waits_no_longer_than_the_patience_and_half_as_long_after_each_miss():
    node = training(0, 1)
    freeze(node, open_session(node, 1))
    now, waits = 0.0, []
    for _ in range(5):
        now += 10.0
        assert only(ticked(node, now), core.StartRound) == []
        end = node.rounds.due
        assert only(node.wake(end - 1e-6), core.StartRound) == []
        assert only(node.wake(end), core.StartRound)
        waits.append(end - now)
        now = end
    assert waits == pytest.approx([1.0, 0.5, 0.25, 0.125, 0.0625])


def test_a_neighbor_without_a_session_costs_nothing():
    node = training(0, 1, 2)
    assert only(ticked(node, 1.0), core.StartRound) == [core.StartRound(index=1, accompanied=False)]


def test_a_round_knows_which_neighbors_are_away_where_others_are_there():
    node = training(0, 1, 2)
    asked = exchange_as_initiator(node, open_session(node, 1)) + ticked(node, 1.0)
    effects = exchange_as_initiator(node, only(asked, core.Freeze)[-1:], 1.01)
    assert only(effects, core.StartRound) == [core.StartRound(index=1, accompanied=True, away=(2,))]


def test_a_session_that_ends_ends_the_waiting_for_it():
    node = training(0, 1)
    freeze(node, open_session(node, 1))
    ticked(node, 1.0)
    assert only(node.handle(core.SessionClosed(peer=1, session=1), 1.1), core.StartRound) == [
        core.StartRound(index=1, accompanied=False)
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
    assert [(type(message), message.version, message.closing) for message in sent(effects)] == [(core.Ready, 1, None)]
    assert only(effects, core.StartRound) == []
    _, effects = apply_request(node, say(node, 0, request(), 1.1), 1.1)
    assert only(effects, core.StartRound) == [core.StartRound(index=1, accompanied=True)]


def test_an_initiator_answers_a_ready_with_a_request_although_it_has_nothing_new():
    node = training(0, 1)
    exchange_as_initiator(node, open_session(node, 1), version=3)
    assert say(node, 1, core.Ready(version=3, closing=None)) == []
    assert [op.version for op in only(say(node, 1, core.Ready(version=4, closing=None)), core.Freeze)] == [0]


def test_a_ready_that_comes_during_an_exchange_is_not_lost():
    node = training(0, 1)
    asked, _ = freeze(node, open_session(node, 1))
    effects = say(node, 1, reply_to(asked, version=3))
    say(node, 1, core.Ready(version=4, closing=None))
    assert [op.echo for op in only(apply_reply(node, effects), core.Freeze)] == [3]


def test_a_ready_for_what_the_same_exchange_brought_asks_for_nothing_more():
    node = training(0, 1)
    asked, _ = freeze(node, open_session(node, 1))
    effects = say(node, 1, reply_to(asked, version=4))
    say(node, 1, core.Ready(version=4, closing=None))
    assert only(apply_reply(node, effects), core.Freeze) == []


def test_patience_is_a_multiple_of_the_measured_time_and_never_above_the_setting():
    patience = core.Patience(longest_s=5.0)
    assert patience.wait_s() == 1.0
    patience.note_exchange(0.1)
    assert patience.wait_s() == pytest.approx(0.42)
    for _ in range(60):
        patience.note_exchange(100.0)
    assert patience.wait_s() == 5.0


def test_patience_comes_back_with_the_first_exchange():
    patience = core.Patience(longest_s=5.0)
    for _ in range(40):
        patience.note_miss()
    assert patience.wait_s() < 0.001
    patience.note_exchange(None)
    assert patience.wait_s() == 1.0


# -- What one neighbor may cost beyond the others is bounded; what all neighbors take alike is waited for.

STUTTER = stutters(period_s=2.0, runs_s=0.04, takes_s=0.005)
SLACK = 0.01


def pace(answers, *, train_s, until=150.0, **changes):
    """Rounds a second, after as many seconds of settling in."""
    world = PacedNode(answers, train_s=train_s, **changes)
    world.run(until)
    return world.run(2 * until), world


@pytest.mark.parametrize("train_s", [0.04, 0.25, 2.0])
@pytest.mark.parametrize("others", [1, *(pytest.param(others, marks=pytest.mark.long) for others in (2, 5))])
def test_a_neighbor_that_stutters_costs_no_more_than_its_share(train_s, others):
    """40 ms of every 2 s took 40% of the pace of a node whose rounds take a quarter of a second."""
    equal = {peer: takes(0.005) for peer in range(1, others + 1)}
    until = 150.0 if train_s > 0.1 else 70.0  # many rounds take long
    alone, _ = pace(equal, train_s=train_s, until=until)
    beside, world = pace(equal | {9: STUTTER}, train_s=train_s, until=until)
    assert beside >= (1 - core.WAIT_SHARE - SLACK) * alone
    assert world.exchanges[9] > 100


def test_no_minute_costs_more_than_its_share_and_the_burst():
    world = PacedNode({1: takes(0.005), 2: STUTTER}, train_s=0.25)
    before = PacedNode({1: takes(0.005)}, train_s=0.25).run(60.0)
    lost = [60.0 * (1 - world.run(60.0 * minute) / before) for minute in range(1, 5)]
    assert lost[0] <= core.WAIT_BURST_S + 60.0 * core.WAIT_SHARE + 0.5
    assert max(lost[1:]) <= 60.0 * core.WAIT_SHARE + 0.5


@pytest.mark.long
def test_two_that_stutter_together_hide_not_behind_each_other():
    equal = {peer: takes(0.005) for peer in (1, 2, 3)}
    alone, _ = pace(equal, train_s=0.25)
    beside, _ = pace(equal | {8: STUTTER, 9: STUTTER}, train_s=0.25)
    assert beside >= (1 - 2 * core.WAIT_SHARE - SLACK) * alone


def test_neighbors_that_are_all_slow_alike_are_waited_for():
    """A round of a millisecond would outrun gossip."""
    _, world = pace({1: takes(2.0), 2: takes(1.8), 3: takes(2.2)}, train_s=0.05)
    assert all(count >= world.rounds - 1 for count in world.exchanges.values())


def test_a_single_neighbor_is_waited_for():
    """Without it the node would train alone, and there is nobody to compare it with."""
    _, world = pace({1: takes(2.0)}, train_s=0.05)
    assert world.exchanges[1] >= world.rounds - 3


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_equal_neighbors_on_a_busy_machine_are_all_waited_for(seed):
    """Exchange times that vary by a factor of twenty from one to the next are noise, not a slow neighbor."""
    draw = Draws(seed)

    def busy(asked):
        return asked + 0.005 * 20 ** draw()

    _, world = pace({1: busy, 2: busy}, train_s=0.001, until=70.0)
    assert min(world.exchanges.values()) >= 0.97 * world.rounds


@pytest.mark.long
def test_a_neighbor_that_has_recovered_is_waited_for_again():
    def answered(asked):
        return STUTTER(asked) if asked < 70.0 else asked + 0.02

    world = PacedNode({1: takes(0.02), 2: answered}, train_s=0.001)
    world.run(80.0)
    before, rounds = world.exchanges[2], world.rounds
    world.run(110.0)
    assert world.exchanges[2] - before >= world.rounds - rounds - 1


def test_a_budget_refills_by_its_share_up_to_the_burst():
    budget = core.Patience(longest_s=60.0)
    assert budget.left_s(0.0) == core.WAIT_BURST_S
    budget.book_wait(core.WAIT_BURST_S + 1.0, core.WAIT_BURST_S + 1.0, 0.0, 0.0)
    assert budget.left_s(0.0) == pytest.approx(-1.0)
    assert budget.left_s(10.0) == pytest.approx(-1.0 + 10.0 * core.WAIT_SHARE)
    assert budget.left_s(1e6) == core.WAIT_BURST_S


def test_who_sets_the_pace_is_told_where_one_costs_more_than_the_others():
    assert core.pace_setter({}) is None
    assert core.pace_setter({1: 0.2}) is None
    assert core.pace_setter({1: 3.0}) == 1
    assert core.pace_setter({1: 3.0, 2: 0.4, 3: 0.0}) == 1
    assert core.pace_setter({1: 12.0, 2: 11.0}) is None


def test_the_stuttering_neighbor_sets_the_pace():
    _, world = pace({1: takes(0.005), 2: STUTTER}, train_s=0.25)
    used_s = {peer: edge.service.patience.used_s(world.now) for peer, edge in world.node.edges.items()}
    assert core.pace_setter(used_s) == 2
    assert used_s[1] == 0.0


def test_the_time_in_a_queue_is_no_training_time():
    """Nodes of one process learn in turn: a crowd must look neither slow nor stale, and wait for nobody any longer."""

    def trained(waited_s):
        world = PacedNode({1: takes(0.01)}, train_s=1.0, waited_s=waited_s)
        world.run(60.0)
        return world.node.rounds

    alone, crowded = trained(0.0), trained(7.0)
    assert crowded.barrier.training_s == pytest.approx(alone.barrier.training_s) == pytest.approx(1.0)
    assert crowded.training.own_pace_s == pytest.approx(alone.training.own_pace_s, rel=0.01)


# -- No neighbor takes the engine from the others, and one with a session that never answers does not go unnoticed.

COST_S = 0.05


def taken(asked, *, until_s=200.0, others=(1,)):
    """The share of the engine's time that neighbor 0 gets; `asked` gives by neighbor what of it each would take."""
    time = core.EngineTime()
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
    assert taken({0: 0.9, 1: 0.01}) == pytest.approx(core.ENGINE_SHARE_OF_ALL, rel=0.1)
    assert taken({0: 0.9, 1: 0.01, 2: 0.3}, others=(1, 2)) == pytest.approx(core.ENGINE_SHARE_OF_ALL, rel=0.1)


def test_a_neighbor_that_is_alone_gets_three_quarters():
    assert taken({0: 0.9}, others=()) == pytest.approx(core.ENGINE_SHARE_ALONE, rel=0.1)


@pytest.mark.parametrize("others", [1, 2, 3])
def test_honest_neighbors_that_keep_the_engine_at_work_all_the_time_never_wait(others):
    """Rounds of a few milliseconds: all edges take equal parts, give or take a third."""
    each = 1.0 / (others + 1)
    asked = {0: 1.3 * each} | dict.fromkeys(range(1, others + 1), each)
    assert taken(asked, others=range(1, others + 1)) == pytest.approx(1.3 * each, rel=0.02)


def test_what_was_spent_is_forgotten_and_not_by_a_new_session():
    time = core.EngineTime()
    time.begin(0)
    time.begin(1)
    time.spend(0, core.ENGINE_WINDOW_S, 0.0)
    wait_s = time.wait_s(0, 0.0)
    time.pause(0)
    time.begin(0)
    assert time.wait_s(0, 0.0) == wait_s > 1.0
    assert time.wait_s(0, wait_s + 1e-6) == 0.0
    assert time.wait_s(1, 0.0) == 0.0


def test_who_has_no_session_is_no_other():
    """Neighbor 0 may take what a neighbor may that is alone."""
    time = core.EngineTime()
    time.begin(0)
    time.begin(1)
    time.spend(0, (core.ENGINE_SHARE_OF_ALL + core.ENGINE_SHARE_ALONE) / 2 * core.ENGINE_WINDOW_S, 0.0)
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
            for op in only(effects, core.ApplyRequest):
                seq[peer] += 1
                reply = reply_to(op.request, version=op.version, factor=op.factor)
                applied = core.RequestApplied(peer=peer, request=asked, reply=reply, chain=b"c" * 16, cost_s=cost_s)
                answers[peer] += sent(node.handle(applied, now))
    assert any(isinstance(answer, core.Busy) for answer in answers[0])
    assert seq[0] * 0.04 < core.ENGINE_SHARE_OF_ALL * (core.ENGINE_WINDOW_S + now) + 0.1
    assert seq[1] > 390
    assert not only(answers[1], core.Busy)


def test_exchanges_that_the_neighbor_wishes_for_are_within_its_part_too():
    node = make_node(0, 1)
    open_session(node, 1)
    node.edges[1].exchange.engine_time.spend(1, 100.0, 0.0)
    exchange = node.edges[1].exchange
    exchange.busy = False
    exchange.record.heard = 0
    exchange.service.exchanged = node.facts.version
    assert say(node, 1, core.Ready(version=5)) == []


def answers_until(stops_s, takes_s=0.01):
    """Answers for that long, and never again."""
    return lambda asked: asked + takes_s if asked < stops_s else 10.0**9


def alarms_of(world, until):
    found = []
    carry_out = world.carry_out
    world.carry_out = lambda effects: (found.extend(only(effects, core.Alarm)), carry_out(effects))
    world.run(until)
    return [(alarm.kind, alarm.peer) for alarm in found]


def test_a_neighbor_with_a_session_that_never_answers_is_reported_once():
    world = PacedNode({1: takes(0.01), 2: answers_until(5.0)}, train_s=0.05)
    assert alarms_of(world, 45.0) == []
    assert alarms_of(world, 300.0) == [("nothing-exchanged", 2)]


@pytest.mark.long
def test_a_neighbor_that_keeps_a_session_and_never_greets_is_reported_too():
    world = PacedNode({1: takes(0.01), 2: takes(0.01)}, train_s=0.05)
    world.take(core.SessionOpened(peer=2, session=2))
    assert alarms_of(world, core.UNANSWERED_S - 1.0) == []
    assert alarms_of(world, 300.0) == [("nothing-exchanged", 2)]


def in_short_sessions(world, *, lasts_s, absent_s, greets=True):
    """The alarms in ten minutes in which each session with neighbor 2 is cut, and another one begins later."""
    found = []
    for number in range(2, int(600.0 / (lasts_s + absent_s))):
        world.take(core.SessionClosed(peer=2, session=number - 1))
        found += alarms_of(world, world.now + absent_s)
        world.take(core.SessionOpened(peer=2, session=number))
        if greets:
            world.take(core.MessageReceived(peer=2, session=number, message=hello()))
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
    assert in_short_sessions(world, lasts_s=40.0, absent_s=core.LONG_ABSENCE_S) == []


def test_a_neighbor_that_is_merely_slow_is_not():
    """Rounds of 50 ms, and exchanges of 20 s."""
    assert alarms_of(PacedNode({1: takes(0.01), 2: takes(20.0)}, train_s=0.05), 300.0) == []


def test_few_long_rounds_without_an_answer_are_not_enough():
    world = PacedNode({1: takes(0.01), 2: answers_until(0.0)}, train_s=60.0)
    assert alarms_of(world, 60.0 * (core.UNANSWERED_ROUNDS - 1)) == []
    assert core.UNANSWERED_S < 60.0
    assert alarms_of(world, 60.0 * (core.UNANSWERED_ROUNDS + 3)) == [("nothing-exchanged", 2)]


def test_no_round_waits_for_a_neighbor_that_is_put_off():
    alone = PacedNode({1: takes(0.01)}, train_s=0.01).run(20.0)
    world = PacedNode({1: takes(0.01), 2: takes(0.5)}, train_s=0.01)
    world.node.edges[2].exchange.engine_time.spend(2, 1e9, 0.0)
    assert world.run(20.0) > 0.9 * alone
