"""Vitals spread: everybody soon knows the newest row of everybody, within the bytes that an edge may take."""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vitals_kit import ROW

from p2pfl.crypto.identity import Identity
from p2pfl.features.status import (
    CALM_S,
    EDGE_BYTES_PER_S,
    HEARD_AT_ONCE,
    MESSAGE_BYTES,
    ROW_BYTES,
    VitalsSpread,
    VitalsTold,
    period_s,
)
from p2pfl.reporting import sign

REALM = bytes(32)


def identity(index):
    return Identity((index + 1).to_bytes(32, "little"))


class Network:
    """Nodes in one process; a message arrives at once, unless its edge is `cut`."""

    def __init__(self, edges):
        self.edges = [frozenset(edge) for edge in edges]
        self.count = 1 + max(max(edge) for edge in edges)
        self.cut = set()
        self.sent = {}
        self.now = 0.0
        self.nodes = [self.make(index) for index in range(self.count)]
        for edge in self.edges:
            self.join(*edge)

    def make(self, index):
        return VitalsSpread(
            own=index,
            identity=identity(index),
            realm=REALM,
            key_of=lambda member: identity(member).public if member < self.count else None,
            send=lambda peer, told, **_: self.carry(index, peer, told),
        )

    def join(self, a, b):
        self.nodes[a].opened(b, self.now)
        self.nodes[b].opened(a, self.now)

    def carry(self, source, target, told):
        edge = frozenset((source, target))
        if edge in self.cut:
            return False
        size = MESSAGE_BYTES + sum(len(raw) + ROW_BYTES for _, raw in told.rows)
        self.sent[edge] = self.sent.get(edge, 0) + size
        self.nodes[target].hear(source, told, self.now)
        return True

    def publish(self, index, **said):
        self.nodes[index].publish(msgspec.structs.replace(ROW, member=index, **said), self.now)

    def pass_time(self, seconds):
        for _ in range(seconds):
            self.now += 1.0
            for node in self.nodes:
                node.tick(self.now)

    def rounds_known(self, index):
        return {member: row.vitals.rounds for member, row in self.nodes[index].rows.items()}


def path(count):
    return Network(list(pairwise(range(count))))


def test_a_row_that_would_be_too_long_is_told_with_fewer_words():
    """It used to be told no more: the others saw the one before grow old, and no alarm."""
    network = Network([(0, 1)])
    network.publish(0, live=bytes([255]) * 128, standing=("a" * 32,) * 6, rounds=7)
    network.pass_time(2)
    assert network.nodes[1].rows[0].vitals.rounds == 7


def test_everybody_hears_of_everybody_over_a_path():
    network = path(5)
    for index in range(5):
        network.publish(index, rounds=10 + index)
    network.pass_time(8)
    for index in range(5):
        assert network.rounds_known(index) == {member: 10 + member for member in range(5)}


def test_a_row_says_from_whom_it_came_and_how_old_it_is():
    network = path(3)
    network.publish(0)
    network.pass_time(3)
    row = network.nodes[2].rows[0]
    assert row.source == 1
    assert row.said_at == pytest.approx(0.0, abs=1.0)
    network.nodes[2].closed(1)
    network.nodes[2] = network.make(2)  # it starts again, an hour later: the row is as old as it is
    network.now += 3600.0
    network.nodes[1].closed(2)
    network.join(1, 2)
    network.pass_time(1)
    assert network.nodes[2].rows[0].said_at == pytest.approx(0.0, abs=1.0)


@pytest.mark.long
def test_an_edge_takes_no_more_than_its_share_however_much_there_is_to_say():
    network = path(16)
    network.pass_time(1)
    for _ in range(60):
        for index in range(16):
            network.publish(index)
        network.pass_time(1)
    assert max(network.sent.values()) <= EDGE_BYTES_PER_S * 60 + 2 * 2000


@pytest.mark.long
def test_rows_of_hundreds_stay_within_a_few_periods():
    count, chance = 40, random.Random(0)
    edges = {tuple(sorted((i, (i + hop) % count))) for i in range(count) for hop in (1, chance.randrange(2, 20))}
    network, period = Network(sorted(edges)), int(period_s(40))
    for round_ in range(4):
        for index in range(count):
            network.publish(index, rounds=round_)
        network.pass_time(period)
    oldest = min(min(network.rounds_known(index).values()) for index in range(count))
    assert all(len(network.nodes[index].rows) == count for index in range(count))
    assert oldest >= 2


def test_a_row_that_was_lost_with_its_session_comes_with_the_next_one():
    network = path(2)
    for index in (0, 1):
        network.publish(index, rounds=7 + index, period_s=CALM_S)
    network.nodes[1].closed(0)
    network.pass_time(CALM_S // 2)
    assert not network.nodes[0]._listeners[1].lacks, "it was sent"
    network.nodes[0].closed(1)
    network.join(0, 1)
    network.pass_time(2)
    assert network.rounds_known(1) == {0: 7, 1: 8}


def test_a_line_that_is_not_free_is_tried_again():
    network = path(2)
    network.cut.add(frozenset((0, 1)))
    network.publish(0, rounds=7)
    network.pass_time(3)
    assert network.rounds_known(1) == {}
    network.cut.clear()
    network.pass_time(1)
    assert network.rounds_known(1) == {0: 7}


def test_who_starts_again_is_believed_once_it_has_heard_its_own_last_row():
    network = path(3)
    for _ in range(50):
        network.publish(0, rounds=40)
    network.pass_time(4)
    network.nodes[0] = network.make(0)
    network.nodes[1].closed(0)
    network.cut.add(frozenset((0, 1)))
    network.join(0, 1)
    network.publish(0, rounds=1)
    network.cut.clear()
    network.pass_time(2)
    assert network.rounds_known(2)[0] == 40
    assert network.nodes[0].is_behind
    network.publish(0, rounds=2)
    network.pass_time(3)
    assert network.rounds_known(2)[0] == 2
    assert not network.nodes[0].is_behind


def test_who_starts_again_hears_its_own_row_before_all_others():
    network, heard = path(3), []
    for index in range(3):
        network.publish(index, budget=5, begun=1, paid=70 + index)
    network.pass_time(4)
    network.nodes[0] = network.make(0)
    network.nodes[0]._on_own = lambda vitals: heard.append((vitals.budget, vitals.begun, vitals.paid))
    network.nodes[1].closed(0)
    network.join(0, 1)
    assert heard == [(5, 1, 70)]
    assert network.nodes[0].is_behind
    network.publish(0, rounds=1)
    network.pass_time(3)
    assert network.rounds_known(2)[0] == 1


def raw_row(member, *, counter=1, key=None, realm=REALM):
    return sign(
        msgspec.structs.replace(ROW, member=member, counter=counter), identity(member if key is None else key), realm
    )


@pytest.mark.parametrize(
    "raw",
    [
        b"x",
        b"x" * 200,
        raw_row(2, key=1),
        raw_row(2, realm=bytes([1]) * 32),
        raw_row(2)[:-1] + b"x",
    ],
    ids=["short", "noise", "another's key", "another federation", "changed"],
)
def test_what_its_member_has_not_signed_is_refused_and_nobody_stops(raw):
    network = path(3)
    network.nodes[0].hear(1, VitalsTold(rows=((0, raw), (0, raw_row(2)))), 0.0)
    assert network.nodes[0].refused[1] == 1
    assert set(network.nodes[0].rows) == {2}, "the row behind it is read"


def test_an_older_row_is_refused_and_the_newer_one_told():
    network = path(2)
    node = network.nodes[0]
    node.hear(1, VitalsTold(rows=((0, raw_row(1, counter=9)),)), 0.0)
    node.hear(1, VitalsTold(rows=((0, raw_row(1, counter=8)),)), 0.0)
    assert node.rows[1].vitals.counter == 9
    assert list(node._listeners[1].lacks) == [1]


def test_who_is_no_member_has_no_row():
    network = path(2)
    network.nodes[0].hear(1, VitalsTold(rows=((0, raw_row(2)), (0, raw_row(500)))), 0.0)
    assert network.nodes[0].rows == {}
    assert not network.nodes[0].hurries, "it is no news"


def test_who_says_too_much_is_not_read_to_the_end():
    network = path(2)
    for counter in range(1, 1000):
        network.nodes[0].hear(1, VitalsTold(rows=((0, raw_row(1, counter=counter)),)), 0.0)
    assert network.nodes[0].rows[1].vitals.counter <= HEARD_AT_ONCE


def test_a_row_from_somebody_without_a_session_is_not_read():
    network = path(2)
    network.nodes[0].closed(1)
    network.nodes[0].hear(1, VitalsTold(rows=((0, raw_row(1)),)), 0.0)
    assert network.nodes[0].rows == {}


def test_the_last_word_goes_out_when_the_share_is_used_up():
    network = path(2)
    for _ in range(40):
        network.publish(0)
        network.nodes[0].tick(network.now)
    network.publish(0, phase="finished")
    network.nodes[0].tick(network.now)
    assert network.nodes[1].rows[0].vitals.phase == "training"
    network.nodes[0].tick(network.now, last=True)
    assert network.nodes[1].rows[0].vitals.phase == "finished"


def test_who_goes_passes_on_the_last_words_of_others_first():
    """Those of two of eight stayed behind, and five nodes waited five seconds for them: in a third of all demos."""
    network = path(4)
    for index in range(4):
        network.publish(index, rounds=1)
    network.pass_time(8)
    for node in network.nodes:
        for listener in node._listeners.values():
            listener.tokens = 0.0
    for index in (3, 2):
        network.publish(index, phase="finished")
        network.nodes[index].tick(network.now, last=True)
    assert network.nodes[1].owes
    network.publish(1, phase="finished")
    network.nodes[1].tick(network.now, last=True)
    assert not network.nodes[1].owes
    assert [network.nodes[0].rows[member].vitals.phase for member in (1, 2, 3)] == ["finished"] * 3


@settings(max_examples=30)
@given(st.data())
def test_whatever_is_cut_everybody_knows_the_newest_of_everybody_in_the_end(data):
    network = Network([(0, 1), (1, 2), (2, 3), (3, 0), (1, 3)])
    edges = st.sets(st.sampled_from(network.edges))
    for round_ in range(data.draw(st.integers(1, 5))):
        network.cut = data.draw(edges)
        for index in data.draw(st.sets(st.integers(0, 3))):
            network.publish(index, rounds=round_)
        network.pass_time(data.draw(st.integers(0, 3)))
    network.cut.clear()
    network.pass_time(12)
    said = {index: node.rows[index].vitals for index, node in enumerate(network.nodes) if index in node.rows}
    for node in network.nodes:
        assert {index: row.vitals for index, row in node.rows.items()} == said
