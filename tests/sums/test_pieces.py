"""Large messages travel in pieces with credit: whole or not at all, with little waiting at either end."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from p2pfl.errors import PeerFault
from p2pfl.features.sums import (
    HEAD_BYTES,
    MOST_QUEUED,
    MOST_SMALL_BYTES,
    PIECE_UNITS,
    WINDOW,
    BranchPart,
    Credit,
    Have,
    Incoming,
    Outgoing,
    Piece,
    Total,
    bits_of,
)
from p2pfl.features.sums.talk import CHANNEL, PIECE_BYTES

ENTRIES = 100_000


def part(wave=1, entries=ENTRIES):
    vector = np.random.default_rng(wave).integers(0, 2**64, entries, dtype="<u8")
    return BranchPart(wave=bytes([wave]) * 16, members=bits_of([0, 4095]), vector=vector.tobytes())


class Line:
    """One direction, with so much room for what waits."""

    def __init__(self, room=1000):
        self.waiting, self.room, self.most = deque(), room, 0
        self.outgoing, self.incoming = Outgoing(self.say), Incoming()

    def say(self, message):
        if len(self.waiting) >= self.room:
            return False
        self.waiting.append(CHANNEL.unpack(CHANNEL.pack(message).body))
        self.most = max(self.most, len(self.waiting))
        return True

    def run(self, entries=ENTRIES):
        came = []
        while self.waiting:
            message = self.waiting.popleft()
            is_due = self.incoming.count(message)
            whole = self.incoming.take(message, entries) if isinstance(message, Piece) else message
            if is_due:
                self.outgoing.credit(self.incoming.credit())
            if whole is not None:
                came.append(whole)
        return came


def test_large_messages_come_whole_and_in_order_and_few_pieces_wait():
    line = Line()
    total = Total(setup=bytes(16), number=3, members=bits_of([1]), vector=bytes(8 * ENTRIES))
    for message in (part(), total, part(2)):
        line.outgoing.put(message)
    assert line.run() == [part(), total, part(2)]
    assert line.most == WINDOW // PIECE_UNITS


def test_the_largest_message_that_there_is_comes_through():
    line = Line()
    line.outgoing.put(part(entries=2**20))
    assert line.run(2**20) == [part(entries=2**20)]


def test_what_waits_already_is_not_queued_again_and_the_oldest_gives_way():
    line = Line(room=0)
    for wave in (1, 1, 2, 3, 3, 4, 5):
        line.outgoing.put(part(wave))
    line.room = 1000
    line.outgoing.push()
    came = line.run()
    assert len(came) == MOST_QUEUED
    assert [message.wave[0] for message in came] == [1, 3, 4, 5], "the first is on its way"


def test_where_no_room_is_the_rest_goes_later():
    line = Line(room=3)
    line.outgoing.put(part())
    assert len(line.waiting) == 3
    came = line.run()
    while not came:
        line.outgoing.push()
        came = line.run()
    assert came == [part()]


@pytest.mark.parametrize("entries", [None, ENTRIES - 200, ENTRIES + 100])
def test_a_message_of_another_size_than_the_own_sum_gets_no_room_and_is_lost(entries):
    line = Line()
    line.outgoing.put(part())
    assert line.run(entries) == []
    line.outgoing.put(part(2))
    assert line.incoming._body is None
    assert line.run() == [part(2)], "the next one is taken"


def piece(offset=0, size=2 * PIECE_BYTES, part=bytes(PIECE_BYTES)):
    return Piece(size=size, offset=offset, part=part)


def test_small_messages_go_between_pieces_each_once_while_it_is_on_its_way():
    line = Line()
    line.outgoing.put(part())
    for digest in (1, 2, 1):
        line.outgoing.put(Have(digest=digest))
    came = line.run()
    assert came == [Have(digest=1), Have(digest=2), part()]
    for digest in range(1000):
        line.outgoing.put(Have(digest=digest))
    assert len(line.waiting) <= WINDOW
    assert line.run() == [Have(digest=digest) for digest in range(1000)]
    line.outgoing.put(Have(digest=1))
    assert line.run() == [Have(digest=1)], "what has come may be said again"


def test_what_waits_for_a_neighbor_that_takes_nothing_is_bounded():
    line = Line()
    for number in range(1000):
        line.outgoing.put(Have(digest=number, ids=bytes(40_000)))
    assert line.outgoing._small_bytes == sum(line.outgoing._small.values()) <= MOST_SMALL_BYTES


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(offset=5)],
        [piece(), piece()],
        [piece(), piece(offset=PIECE_BYTES, size=3 * PIECE_BYTES)],
        [piece(size=PIECE_BYTES - 1)],
        [piece(), piece(offset=PIECE_BYTES)],
    ],
    ids=["not the first", "twice", "another size", "beyond the end", "no message"],
)
def test_pieces_that_no_honest_node_sends_are_a_fault(pieces):
    incoming = Incoming()
    for each in pieces[:-1]:
        incoming.take(each, 2 * PIECE_BYTES // 8)
    with pytest.raises(PeerFault):
        incoming.take(pieces[-1], 2 * PIECE_BYTES // 8)


@pytest.mark.parametrize("taken", [2**40, 23])
def test_credit_for_what_was_never_sent_or_less_than_before_is_a_fault(taken):
    outgoing = Outgoing(lambda _: True)
    outgoing.put(part(entries=WINDOW * PIECE_BYTES // 8 // 8))
    outgoing.credit(Credit(taken=24))
    with pytest.raises(PeerFault):
        outgoing.credit(Credit(taken=taken))


def test_a_vector_of_a_piece_is_sent_whole():
    assert len(CHANNEL.pack(part(entries=PIECE_BYTES // 8)).body) <= PIECE_BYTES + HEAD_BYTES <= CHANNEL.most_bytes
