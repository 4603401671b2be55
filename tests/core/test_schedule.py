"""A node in a schedule: its own round selects the edges that it exchanges on and waits for; it answers on all."""

from __future__ import annotations

import pytest
from core_kit import (
    SAMPLES,
    apply_reply,
    apply_request,
    begun_alone,
    commit,
    exchange_as_initiator,
    filled,
    freeze,
    hello,
    known_to,
    make_node,
    only,
    open_session,
    reply_to,
    request,
    say,
    sent,
    started,
)
from hypothesis import given
from hypothesis import strategies as st

from p2pfl import core

PERIOD = 4


def alternating(index, *peers, period=PERIOD, **changes):
    """A node whose neighbor number k has its turn in phase k, sessions not yet open."""
    turns = {peer: core.Turns(period, (phase,)) for phase, peer in enumerate(peers)}
    plain = {"start_wait_s": 0.0, "rounds": 1000}
    return make_node(index, *peers, turns=turns, young=True, **(plain | changes))


def filled_initiator(*peers, **changes):
    """Node 0 in its first round, every edge open and filled by one exchange, at version 0."""
    node = alternating(0, *peers, **changes)
    started(node)
    for peer in peers:
        exchange_as_initiator(node, open_session(node, peer))
    return node


def ticked(node, now):
    return commit(node, node.handle(core.RoundTrained(steps=5, samples=30), now), now)


# -- what a tick does -------------------------------------------------------------------------------------------------


def test_a_tick_exchanges_on_the_edges_of_its_own_round_alone():
    node = filled_initiator(1, 2, 3)
    for version, peer in ((1, 2), (2, 3)):
        effects = ticked(node, float(version))
        assert [(op.peer, op.version) for op in only(effects, core.Freeze)] == [(peer, version)]
        exchange_as_initiator(node, effects, float(version))


def test_the_next_round_waits_for_the_edges_of_its_own_round_alone():
    node = filled_initiator(1, 2, 3)
    effects = ticked(node, 1.0)
    assert only(effects, core.StartRound) == []
    assert only(exchange_as_initiator(node, effects, 1.01), core.StartRound) == [
        core.StartRound(index=1, accompanied=True)
    ]


def test_a_round_in_which_no_edge_has_its_turn_rests_as_long_as_an_exchange_takes():
    """Or nodes that rest more often than others would train ahead of them."""
    node = alternating(0, 1)
    started(node)
    asked, _ = freeze(node, open_session(node, 1))
    apply_reply(node, say(node, 1, reply_to(asked), 0.3), 0.3)
    effects = ticked(node, 1.0)
    assert only(effects, core.Freeze, core.StartRound) == []
    assert node.rounds.due == 1.3
    assert only(node.wake(1.3), core.StartRound) == [core.StartRound(index=1, accompanied=True)]


def test_a_round_rests_no_longer_than_any_wait_may_be():
    node = alternating(0, 1, max_wait_s=2.0)
    started(node)
    asked, _ = freeze(node, open_session(node, 1))
    apply_reply(node, say(node, 1, reply_to(asked), 30.0), 30.0)
    ticked(node, 31.0)
    assert node.rounds.due == 33.0


def test_a_neighbor_without_a_session_costs_nothing_in_its_round_or_in_another():
    node = alternating(0, 1, 2)
    started(node)
    for peer in (1, 2):
        asked, _ = freeze(node, open_session(node, peer))
        apply_reply(node, say(node, peer, reply_to(asked), 0.3), 0.3)
    node.handle(core.SessionClosed(peer=2, session=1), 0.5)
    assert only(ticked(node, 1.0), core.StartRound) == [core.StartRound(index=1, accompanied=True, away=(2,))]
    node.handle(core.SessionClosed(peer=1, session=1), 1.5)
    assert only(ticked(node, 2.0), core.StartRound) == [core.StartRound(index=2, accompanied=False)]


def test_after_a_whole_period_the_first_edge_has_its_turn_again():
    node = filled_initiator(1)
    frozen = []
    for version in range(1, 9):
        effects = ticked(node, float(version))
        frozen += [op.version for op in only(effects, core.Freeze)]
        if only(effects, core.Freeze):
            exchange_as_initiator(node, effects, float(version))
    assert frozen == [4, 8]


def test_a_responder_asks_for_an_exchange_in_the_rounds_of_the_edge_alone():
    node = alternating(2, 0, 1)
    started(node)
    for peer in (0, 1):
        open_session(node, peer, greeting=hello(begun=b"\x07"))
    assert [(m.version, m.closing) for m in sent(ticked(node, 1.0))] == [(1, None)]
    node.wake(60.0)
    assert sent(ticked(node, 61.0)) == []


# -- what a neighbor in another round gets -----------------------------------------------------------------------------


def test_a_request_is_answered_although_the_edge_is_not_of_the_own_round():
    node = alternating(1, 0)
    started(node)
    open_session(node, 0)
    ticked(node, 1.0)
    assert only(say(node, 0, request(version=4), 1.0), core.ApplyRequest)


def test_a_wish_is_met_although_the_edge_is_not_of_the_own_round():
    node = filled_initiator(1, 2)
    effects = ticked(node, 1.0)
    assert [op.peer for op in only(effects, core.Freeze)] == [2]
    effects = say(node, 1, core.Ready(version=4), 1.0)
    assert [(op.peer, op.version) for op in only(effects, core.Freeze)] == [(1, 1)]


@pytest.mark.parametrize(
    "announced", [core.Ready(version=5), core.Ready(version=5, closing=0), core.Ready(version=2, level=3)]
)
def test_an_announcement_from_a_round_without_the_edge_is_no_wish(announced):
    node = filled_initiator(1)
    assert only(say(node, 1, announced, 1.0), core.Freeze) == []


def test_an_announcement_from_a_round_without_the_edge_is_heard():
    node = filled_initiator(1)
    say(node, 1, core.Ready(version=5, closing=2), 1.0)
    assert (node.edges[1].progress.version, node.edges[1].progress.closing) == (5, 2)


def test_in_the_closing_rounds_every_neighbor_is_told_and_only_the_active_one_exchanges():
    node = alternating(2, 0, 1, 3, fresh=False, version=4, rounds_done=4, rounds=4, closing_rounds=3)
    closing = begun_alone(node)
    for peer in (0, 1, 3):
        effects = open_session(node, peer, greeting=hello(version=9, closing=9))
    exchange_as_initiator(node, only(effects, core.Freeze))
    effects = commit(node, closing, 1.0)
    assert _told(effects) == [(5, 1)] * 3
    assert only(effects, core.Freeze) == []
    _, effects = apply_request(node, say(node, 1, request(version=5), 1.0), 1.0)
    effects = commit(node, effects, 1.0)
    assert _told(effects) == [(6, 2)] * 3
    assert [op.peer for op in only(effects, core.Freeze)] == [3]


CLOSING = {"fresh": False, "version": 4, "rounds_done": 4, "young": True}
CLOSING |= {"start_wait_s": 0.0, "rounds": 4, "closing_rounds": 9, "linger_s": 20.0}


def closing(index, peer, **changes):
    """A node whose edge has its turn in every even version, in closing round 1 of version 5; and the session open."""
    node = make_node(index, peer, turns={peer: core.Turns(2, (0,))}, **(CLOSING | changes))
    first = begun_alone(node)
    effects = open_session(node, peer, greeting=hello(version=4, closing=0))
    if index < peer:
        exchange_as_initiator(node, effects)
    assert only(commit(node, first, 1.0), core.CommitRound) == []
    return node


def test_in_a_closing_round_the_initiator_waits_until_the_neighbor_has_begun_the_same_one():
    node = closing(0, 1)
    effects = commit(node, say(node, 1, core.Ready(version=5, closing=1), 1.1), 1.2)
    assert only(effects, core.Freeze, core.CommitRound) == []
    assert only(node.wake(15.0), core.Freeze, core.CommitRound) == []
    (op,) = only(say(node, 1, core.Ready(version=6, closing=2), 15.0), core.Freeze)
    assert op.version == 6
    assert only(exchange_as_initiator(node, [op], 15.0, version=6), core.CommitRound)


def test_a_wish_from_the_next_closing_round_is_met_when_this_end_begins_it():
    """Once: the pair averages what both have then."""
    node = closing(0, 1)
    effects = say(node, 1, core.Ready(version=6, closing=2), 1.1)
    assert only(effects, core.Freeze) == []
    effects = commit(node, effects, 1.2)
    assert [op.version for op in only(effects, core.Freeze)] == [6]
    assert only(exchange_as_initiator(node, effects, 1.2, version=6), core.Freeze) == []


def test_a_neighbor_with_other_versions_is_met_in_the_closing_round_that_it_shares():
    """A node that trained for a time, or has joined, counts other versions: closing rounds are counted alike."""
    node = closing(0, 1)
    effects = say(node, 1, core.Ready(version=8, closing=1), 1.1)
    assert only(effects, core.Freeze) == []
    assert only(commit(node, effects, 1.2), core.Freeze) == []
    effects = say(node, 1, core.Ready(version=9, closing=2), 1.3)
    assert [op.version for op in only(effects, core.Freeze)] == [6]
    assert only(exchange_as_initiator(node, effects, 1.3, version=9), core.Freeze) == []


def test_a_responder_waits_for_its_turn_in_a_closing_round_until_the_neighbor_has_begun_it():
    node = closing(1, 0)
    effects = commit(node, say(node, 0, core.Ready(version=5, closing=1), 1.1), 1.2)
    assert _told(effects) == [(6, 2)]
    assert only(node.wake(15.0), core.CommitRound) == []
    say(node, 0, core.Ready(version=6, closing=2), 15.0)
    assert only(node.wake(node.rounds.due - 1e-6), core.CommitRound) == []
    _, effects = apply_request(node, say(node, 0, request(version=6), 15.1), 15.1)
    assert only(effects, core.CommitRound)


def test_a_neighbor_that_began_the_same_closing_round_and_then_hangs_is_waited_for_as_in_any_other():
    node = closing(1, 0)
    commit(node, say(node, 0, core.Ready(version=5, closing=1), 1.1), 1.2)
    say(node, 0, core.Ready(version=6, closing=2), 5.0)
    assert 5.0 < node.rounds.due <= 6.0
    assert only(node.wake(6.0), core.CommitRound)


def test_a_neighbor_that_claims_ever_more_closing_rounds_holds_nobody_up():
    node = closing(1, 0)
    commit(node, say(node, 0, core.Ready(version=5, closing=1), 1.1), 1.2)
    claims = range(2, 100)
    effects = [
        op for claim in claims for op in say(node, 0, core.Ready(version=claim, closing=claim), 1.2 + claim * 0.1)
    ]
    assert only(effects, core.CommitRound)


def test_on_a_static_graph_an_initiator_waits_for_nobody_to_begin_a_closing_round():
    node = make_node(0, 1, **CLOSING)
    first = begun_alone(node)
    exchange_as_initiator(node, open_session(node, 1, greeting=hello(version=4, closing=0)))
    assert [op.version for op in only(commit(node, first, 1.0), core.Freeze)] == [5]


def test_no_closing_round_waits_for_a_neighbor_longer_than_a_finished_node_lingers():
    for index in (0, 1):
        node = closing(index, 1 - index)
        commit(node, say(node, 1 - index, core.Ready(version=5, closing=1), 1.1), 1.2)
        assert only(node.wake(19.9), core.CommitRound) == []
        assert only(node.wake(20.0), core.CommitRound)


def test_whoever_has_waited_that_long_exchanges_in_the_rest_of_its_closing_rounds_without_waiting_for_the_others():
    """One neighbor that still trains must not make all the closing rounds of the others void."""
    node = closing(0, 1)
    commit(node, say(node, 1, core.Ready(version=5, closing=1), 1.1), 1.2)
    effects = commit(node, node.wake(20.0), 20.0)
    assert only(effects, core.Freeze) == []
    assert [op.version for op in only(commit(node, effects, 20.0), core.Freeze)] == [8]


def _told(effects):
    return [(message.version, message.closing) for message in sent(effects) if isinstance(message, core.Ready)]


# -- replicas ---------------------------------------------------------------------------------------------------------


def test_an_edge_without_replicas_is_filled_at_once_in_whatever_round():
    """An exchange without replicas moves no model: the first turn of an edge shall not be spent on it."""
    node = alternating(0, 1, version=5, rounds_done=5, fresh=False)
    started(node)
    assert [(op.seq, op.staleness) for op in only(open_session(node, 1), core.Freeze)] == [(1, 0.0)]


def test_after_a_resync_the_edge_is_filled_at_once_and_nobody_waits_for_it():
    node = filled_initiator(1)
    ticked(node, 1.0)
    effects = say(node, 1, core.Resync(incarnation=1), 1.5)
    assert [(op.incarnation, op.seq) for op in only(effects, core.Freeze)] == [(1, 1)]
    assert only(ticked(node, 2.0), core.StartRound)


def test_a_session_that_comes_back_between_two_turns_does_not_exchange():
    node = filled_initiator(1)
    ticked(node, 1.0)
    node.handle(core.SessionClosed(peer=1, session=1), 1.1)
    greeting = known_to(node.edges[1].exchange.record)
    assert only(open_session(node, 1, 1.2, session=2, greeting=greeting), core.Freeze) == []
    assert node.edges[1].is_open


def test_a_node_that_joins_fills_all_its_replicas_turn_by_turn():
    node = alternating(0, 1, 2, start_wait_s=2.0)
    effects = started(node)
    for peer in (1, 2):
        effects += open_session(node, peer, greeting=hello(version=50))
    effects = filled(node, effects)
    assert only(effects, core.Bootstrap) == [core.Bootstrap(peers=(1, 2))]
    assert node.rounds.phase is core.Phase.JOINING


# -- weights ----------------------------------------------------------------------------------------------------------


def test_a_pair_that_meets_alone_averages_half_and_half():
    node = filled_initiator(1, 2, 3)
    (op,) = only(ticked(node, 1.0), core.Freeze)
    assert op.weight == SAMPLES / 2


def test_staleness_counts_turns_not_rounds():
    """An edge with one turn in eight rounds is not late when it is eight rounds old."""
    node = filled_initiator(1, period=8)
    for version in range(1, 8):
        ticked(node, float(version))
    (op,) = only(ticked(node, 8.0), core.Freeze)
    assert (op.version, op.staleness, node.edges[1].exchange.weighing.staleness) == (8, 1.0, 1)


def test_turns_that_were_missed_make_it_stale():
    node = filled_initiator(1, period=2)
    node.handle(core.SessionClosed(peer=1, session=1), 0.5)
    for version in range(1, 12):
        ticked(node, float(version))
    greeting = known_to(node.edges[1].exchange.record)
    open_session(node, 1, 11.5, session=2, greeting=greeting)
    (op,) = only(ticked(node, 12.0), core.Freeze)
    assert (node.edges[1].exchange.weighing.staleness, op.staleness) == (6, pytest.approx(3**-0.5))


def test_requests_that_are_out_together_never_offer_the_whole_model():
    """Neighbors in other rounds may all ask at once: each further request offers half of what is left."""
    node = filled_initiator(1, 2, 3, 4, 5, period=5)
    effects = ticked(node, 1.0)
    freeze(node, effects, 1.0)
    offered = [op.weight for op in only(effects, core.Freeze)]
    for peer, version in ((1, 5), (3, 7), (4, 8)):
        effects = say(node, peer, core.Ready(version=version), 1.0)
        offered += [op.weight for op in only(effects, core.Freeze)]
    assert offered == [SAMPLES / 2, SAMPLES / 4, SAMPLES / 8, SAMPLES / 16]
    node.facts.samples = SAMPLES / 2  # as where rows have gone
    (op,) = only(say(node, 5, core.Ready(version=9), 1.0), core.Freeze)
    assert op.weight == 0.0


def test_a_request_that_waits_for_a_neighbor_without_a_session_takes_nothing_from_the_others():
    node = filled_initiator(1, 2, 3)
    freeze(node, ticked(node, 1.0), 1.0)
    node.handle(core.SessionClosed(peer=2, session=1), 1.1)
    (op,) = only(say(node, 1, core.Ready(version=4), 1.2), core.Freeze)
    assert op.weight == SAMPLES / 2


def test_a_request_that_was_out_before_a_restart_still_counts():
    before = filled_initiator(1, 2)
    freeze(before, ticked(before, 1.0), 1.0)
    records = {peer: edge.exchange.record for peer, edge in before.edges.items()}
    node = alternating(0, 1, 2, fresh=False, version=1, rounds_done=1, records=records)
    started(node)
    for peer in (1, 2):
        open_session(node, peer, 2.0, session=2, greeting=known_to(records[peer]))
    (op,) = only(say(node, 1, core.Ready(version=4), 2.0, session=2), core.Freeze)
    assert op.weight == SAMPLES / 4


def test_on_a_static_graph_all_edges_may_be_out_at_once_with_their_full_weight():
    node = make_node(0, 1, 2, 3, start_wait_s=0.0, young=True)
    started(node)
    offered = [op.weight for peer in (1, 2, 3) for op in only(open_session(node, peer), core.Freeze)]
    assert offered == [SAMPLES / 4] * 3


# -- Turns: in which versions an edge is active, and how many turns lie between two versions.

TURNS = st.integers(1, 9).flatmap(
    lambda period: st.builds(
        lambda phases: core.Turns(period, tuple(sorted(phases))), st.sets(st.integers(0, period - 1), min_size=1)
    )
)


@given(turns=TURNS, known=st.integers(0, 60), rounds=st.integers(0, 60))
def test_the_turns_between_two_versions_are_the_active_ones_after_the_first_up_to_the_second(turns, known, rounds):
    counted = sum(turns.is_active(version) for version in range(known + 1, known + rounds + 1))
    assert turns.turns_between(known, known + rounds) == counted


@given(turns=TURNS, version=st.integers(0, 60))
def test_active_are_the_versions_that_are_a_phase_modulo_the_period(turns, version):
    assert turns.is_active(version) == (version % turns.period in turns.phases)


@given(known=st.integers(0, 2**53), now=st.integers(0, 2**53))
def test_on_a_static_graph_turns_are_rounds(known, now):
    assert core.ALWAYS.is_active(now)
    assert core.ALWAYS.turns_between(known, now) == max(0, now - known)


@pytest.mark.parametrize(("version", "closing", "expected"), [(7, None, 7), (7, 0, 7), (8, 1, 1), (12, 5, 5)])
def test_the_version_selects_the_graph_until_the_closing_rounds_do(version, closing, expected):
    assert core.schedule_index(version, closing) == expected


SCHEDULE = (((0, 1), (2, 3)), ((0, 2), (1, 3), (0, 1)), ())


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (0, {1: core.Turns(3, (0, 1)), 2: core.Turns(3, (1,))}),
        (3, {1: core.Turns(3, (1,)), 2: core.Turns(3, (0,))}),
        (4, {}),
    ],
)
def test_each_node_reads_the_turns_of_its_own_edges_from_the_schedule(index, expected):
    assert core.turns_of(index, SCHEDULE) == expected


def test_the_degree_of_a_node_in_a_schedule_is_the_largest_of_any_round():
    assert [core.Conservative().degree(core.turns_of(index, SCHEDULE)) for index in range(5)] == [2, 2, 1, 1, 0]
    assert core.Conservative().degree({1: core.ALWAYS, 2: core.ALWAYS}) == 2


# -- Edges without replicas: which fragment is whose turn, and how far an exchange may move a model.


def test_every_fragment_has_its_turn_and_edges_begin_with_different_ones():
    assert sorted(core.turn_of(5, 3, 4, seq) for seq in range(11, 16)) == list(range(5))
    assert len({core.turn_of(8, 3, other, 1) for other in range(8)}) == 8
    assert core.turn_of(8, 3, 4, 6) == core.turn_of(8, 4, 3, 6)


@pytest.mark.parametrize(
    ("neighbors", "fragments", "degree"),
    [(6, {}, 6), (6, dict.fromkeys(range(6), 8), 1), (6, dict.fromkeys(range(6), 4), 2), (6, {0: 4, 1: 4}, 5)],
)
def test_so_many_edges_share_a_value_at_a_time(neighbors, fragments, degree):
    assert core.degree_of(core.Conservative(), dict.fromkeys(range(neighbors), core.ALWAYS), fragments) == degree


def test_requests_offer_half_of_a_value_and_less_only_where_they_meet():
    """Neighbors 1 and 9 have the same fragment of eight, neighbor 2 another."""
    fragments = dict.fromkeys((1, 2, 9), 8)
    node = make_node(0, 1, 2, 9, start_wait_s=0.0, fragments=fragments)
    started(node)
    offered = []
    for peer in (1, 2, 9):
        effects = open_session(node, peer)
        (op,) = only(effects, core.Freeze)
        offered.append(op.weight)
        freeze(node, effects)
        node.edges[peer].exchange.offered_factor = op.weight  # as if it were not the first exchange
    assert offered == [SAMPLES / 2, SAMPLES / 2, SAMPLES / 4]


def test_a_joining_node_keeps_what_it_is_shown_until_it_has_seen_every_fragment():
    node = make_node(0, 1, young=True, fragments={1: 4})
    asked, _ = freeze(node, open_session(node, 1))
    assert say(node, 1, reply_to(asked)) == [core.ApplyReply(peer=1, reply=reply_to(asked), gather=True)]
    answering = make_node(1, 0, young=True, fragments={0: 4})
    open_session(answering, 0)
    (op,) = only(say(answering, 0, request()), core.ApplyRequest)
    assert op.gather
    mixed = make_node(0, 1, 2, young=True, fragments={1: 4})
    asked, _ = freeze(mixed, open_session(mixed, 2))
    (op,) = only(say(mixed, 2, reply_to(asked)), core.ApplyReply)
    assert op.gather, "an edge with replicas ends no gathering"
    older = make_node(0, 1, fragments={1: 4})
    exchange_as_initiator(older, open_session(older, 1))
    for seen in range(1, 5):
        older.edges[1].exchange.record.seq = older.edges[1].service.exchanges = seen
        assert older.rounds.beginning.sources(late=False) == ((1,) if seen == 4 else ())
