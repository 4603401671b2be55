"""Edges without replicas: which fragment is whose turn, and how far an exchange may move a model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from p2pfl.core.core import Core
from p2pfl.core.events import ApplyReply, ApplyRequest, Freeze
from p2pfl.core.settings import ALWAYS, Conservative, degree_of, turn_of

sys.path.insert(0, str(Path(__file__).parent))
from core_kit import (
    SAMPLES,
    exchange_as_initiator,
    freeze,
    make_node,
    only,
    open_session,
    reply_to,
    request,
    say,
    settings,
    started,
)


def test_every_fragment_has_its_turn_and_edges_begin_with_different_ones():
    assert sorted(turn_of(5, 3, 4, seq) for seq in range(11, 16)) == list(range(5))
    assert len({turn_of(8, 3, other, 1) for other in range(8)}) == 8
    assert turn_of(8, 3, 4, 6) == turn_of(8, 4, 3, 6)


@pytest.mark.parametrize(
    ("neighbors", "fragments", "degree"),
    [(6, {}, 6), (6, dict.fromkeys(range(6), 8), 1), (6, dict.fromkeys(range(6), 4), 2), (6, {0: 4, 1: 4}, 5)],
)
def test_so_many_edges_share_a_value_at_a_time(neighbors, fragments, degree):
    assert degree_of(Conservative(), dict.fromkeys(range(neighbors), ALWAYS), fragments) == degree


def test_requests_offer_half_of_a_value_and_less_only_where_they_meet():
    """Neighbors 1 and 9 have the same fragment of eight, neighbor 2 another."""
    fragments = dict.fromkeys((1, 2, 9), 8)
    node = Core(index=0, neighbors=(1, 2, 9), settings=settings(start_wait_s=0.0, fragments=fragments), samples=SAMPLES)
    node.facts.joining = False
    started(node)
    offered = []
    for peer in (1, 2, 9):
        effects = open_session(node, peer)
        (op,) = only(effects, Freeze)
        offered.append(op.weight)
        freeze(node, effects)
        node.edges[peer].exchange.offered_factor = op.weight  # as if it were not the first exchange
    assert offered == [SAMPLES / 2, SAMPLES / 2, SAMPLES / 4]


def test_a_joining_node_keeps_what_it_is_shown_until_it_has_seen_every_fragment():
    node = make_node(0, 1, young=True, fragments={1: 4})
    asked, _ = freeze(node, open_session(node, 1))
    assert say(node, 1, reply_to(asked)) == [ApplyReply(peer=1, reply=reply_to(asked), gather=True)]
    answering = make_node(1, 0, young=True, fragments={0: 4})
    open_session(answering, 0)
    (op,) = only(say(answering, 0, request()), ApplyRequest)
    assert op.gather
    mixed = make_node(0, 1, 2, young=True, fragments={1: 4})
    asked, _ = freeze(mixed, open_session(mixed, 2))
    (op,) = only(say(mixed, 2, reply_to(asked)), ApplyReply)
    assert op.gather, "an edge with replicas ends no gathering"
    older = make_node(0, 1, fragments={1: 4})
    exchange_as_initiator(older, open_session(older, 1))
    for seen in range(1, 5):
        older.edges[1].exchange.record.seq = older.edges[1].service.exchanges = seen
        assert older.rounds.beginning.sources(late=False) == ((1,) if seen == 4 else ())
