"""The switchboard without sockets: who may talk to whom, in what order, and how much of it is held."""

from __future__ import annotations

import pytest

from p2pfl.errors import PeerFault
from p2pfl.features.relay.relay_frames import (
    MOST_LINES,
    WINDOW_BYTES,
    Closing,
    Frame,
    FrameKind,
    Refusal,
    closing_in,
    pack,
    pack_number,
    unpack,
)
from p2pfl.features.relay.switchboard import Seat, Switchboard


class Table:
    """A switchboard whose members' connections are lists of frames."""

    def __init__(self, **changes):
        self.board = Switchboard(**changes)
        self.ended: list[tuple[bytes, Refusal | None]] = []

    def sit(self, name: str, federation: str = "ward") -> Seat | None:
        key = name.encode().ljust(32, b".")
        return self.board.seat(
            self.board.tenant(federation), key, lambda _: None, lambda why: self.ended.append((key, why))
        )

    def say(self, seat: Seat, kind: FrameKind, line: int = 0, payload: bytes = b"", now: float = 0.0) -> None:
        self.board.receive(seat, unpack(pack(kind, line, payload)), now)

    def give(self, seat: Seat, line: int, size: int) -> None:
        self.board.receive(seat, unpack(pack_number(FrameKind.CREDIT, line, size)), 0.0)

    def heard(self, seat: Seat) -> list[Frame]:
        while self.board.deliver():
            pass
        found = []
        while (raw := self.board.take(seat)) is not None:
            found.append(unpack(raw))
        return found

    def joined(self, one: Seat, other: Seat, number: int = 1) -> int:
        """Open a line and accept it; return its number at the other end."""
        self.say(one, FrameKind.OPEN, number, other.key)
        opened = next(frame for frame in self.heard(other) if frame.kind is FrameKind.OPEN)
        assert opened.payload == one.key
        self.say(other, FrameKind.ACCEPT, opened.line)
        assert self.heard(one)[-1] == (FrameKind.ACCEPT, number, b"")
        return opened.line


@pytest.fixture
def table() -> Table:
    return Table()


def test_what_one_member_sends_arrives_at_the_other_unchanged_and_in_order(table):
    a, b = table.sit("a"), table.sit("b")
    line = table.joined(a, b)
    for number in range(5):
        table.say(a, FrameKind.DATA, 1, bytes([number]) * 9)
    table.say(b, FrameKind.DATA, line, b"back")
    assert [frame.payload for frame in table.heard(b)] == [bytes([number]) * 9 for number in range(5)]
    assert [frame.payload for frame in table.heard(a)] == [b"back"]
    assert table.board.tenant("ward").passed_bytes == 49


def test_a_line_ends_at_the_other_end_behind_the_data_before_it(table):
    a, b = table.sit("a"), table.sit("b")
    table.joined(a, b)
    table.say(a, FrameKind.DATA, 1, b"last")
    board_says = pack_number(FrameKind.CLOSE, 1, Closing.DONE)
    table.board.receive(a, unpack(board_says), 0.0)
    first, second = table.heard(b)
    assert (first.kind, first.payload, closing_in(second)) == (FrameKind.DATA, b"last", Closing.DONE)
    assert not a.ends
    assert not b.ends
    assert table.board.tenant("ward").lines == 0


def test_a_member_of_another_federation_is_not_there(table):
    a = table.sit("a")
    table.sit("b", "other ward")
    for key in (b"b".ljust(32, b"."), b"nobody".ljust(32, b"."), a.key):
        table.say(a, FrameKind.OPEN, 1, key)
        assert closing_in(table.heard(a)[-1]) is Closing.NOT_HERE


def test_no_data_pass_before_both_ends_want_the_line(table):
    a, b = table.sit("a"), table.sit("b")
    table.say(a, FrameKind.OPEN, 1, b.key)
    with pytest.raises(PeerFault, match="before the line was accepted"):
        table.say(a, FrameKind.DATA, 1, b"x")
    with pytest.raises(PeerFault, match="accepted by the end that opened it"):
        table.say(a, FrameKind.ACCEPT, 1)


def test_who_sends_beyond_its_credit_loses_the_line_and_the_relay_holds_no_more_than_that(table):
    a, b = table.sit("a"), table.sit("b")
    table.joined(a, b)
    for _ in range(3):
        table.say(a, FrameKind.DATA, 1, bytes(WINDOW_BYTES // 3))
    assert table.board.tenant("ward").held_bytes < WINDOW_BYTES + 100
    table.say(a, FrameKind.DATA, 1, b"x")
    assert closing_in(table.heard(a)[-1]) is Closing.OVERRUN
    assert closing_in(table.heard(b)[-1]) is Closing.OVERRUN
    assert table.board.tenant("ward").held_bytes == 0


def test_credit_lets_more_through_and_none_can_be_made_up(table):
    a, b = table.sit("a"), table.sit("b")
    line = table.joined(a, b)
    with pytest.raises(PeerFault, match="more credit than there were bytes"):
        table.give(b, line, 1)
    table.say(a, FrameKind.DATA, 1, bytes(WINDOW_BYTES))
    table.heard(b)
    table.give(b, line, WINDOW_BYTES)
    assert table.heard(a)[-1].kind is FrameKind.CREDIT
    table.say(a, FrameKind.DATA, 1, bytes(WINDOW_BYTES))
    assert len(table.heard(b)) == 1


def test_a_quiet_federation_waits_for_one_turn_of_a_flood_and_not_for_all_of_it(table):
    flood = [table.sit(f"f{number}", "flood") for number in range(8)]
    for number, seat in enumerate(flood[1:], 1):
        table.joined(seat, flood[0], number)
    for number, seat in enumerate(flood[1:], 1):
        for _ in range(3):
            table.say(seat, FrameKind.DATA, number, bytes(WINDOW_BYTES // 3))
    a, b = table.sit("a"), table.sit("b")
    table.board.receive(a, unpack(pack(FrameKind.OPEN, 1, b.key)), 0.0)
    opened = unpack(table.board.take(b))
    table.board.receive(b, unpack(pack(FrameKind.ACCEPT, opened.line)), 0.0)
    table.say(a, FrameKind.DATA, 1, b"quiet")
    delivered = 0
    while not b.outbox:
        delivered += table.board.deliver()
    assert delivered <= 2 * (WINDOW_BYTES // 3 + 100)


def test_the_volume_of_a_month_ends_lines_until_the_next_month():
    table = Table(month_bytes=10)
    table.board.begin_month(1)
    a, b = table.sit("a"), table.sit("b")
    table.joined(a, b)
    table.say(a, FrameKind.DATA, 1, bytes(10))
    table.say(a, FrameKind.DATA, 1, b"more")
    assert closing_in(table.heard(a)[-1]) is Closing.USED_UP
    table.say(a, FrameKind.OPEN, 2, b.key)
    assert closing_in(table.heard(a)[-1]) is Closing.USED_UP
    table.heard(b)
    table.board.begin_month(2)
    table.joined(a, b, 3)


def test_a_second_process_with_one_key_takes_the_seat_and_the_first_is_told_why(table):
    a, b = table.sit("a"), table.sit("b")
    table.joined(a, b)
    again = table.sit("a")
    assert table.ended == [(a.key, Refusal.REPLACED)]
    assert closing_in(table.heard(b)[-1]) is Closing.GONE
    table.joined(b, again, 7)
    table.board.leave(a)
    assert table.board.tenant("ward").seats[a.key] is again


def test_lines_and_members_are_bounded():
    table = Table(most_members=2)
    a, b = table.sit("a"), table.sit("b")
    assert table.sit("c") is None
    for number in range(1, MOST_LINES + 2):
        table.say(a, FrameKind.OPEN, number, b.key)
    assert closing_in(table.heard(a)[-1]) is Closing.TOO_MANY
    assert len(a.ends) == len(b.ends) == MOST_LINES
    with pytest.raises(PeerFault, match="a line with the number 1"):
        table.say(a, FrameKind.OPEN, 1, b.key)


def test_opening_and_closing_again_and_again_is_slowed_down(table):
    a, b = table.sit("a"), table.sit("b")
    for number in range(1, 1000):
        table.say(a, FrameKind.OPEN, number, b.key)
        table.board.receive(a, unpack(pack_number(FrameKind.CLOSE, number, Closing.DONE)), 0.0)
    assert closing_in(table.heard(a)[-1]) is Closing.TOO_MANY
    assert not b.ends or all(end.other is None for end in b.ends.values())


def test_a_member_that_does_not_read_is_ended_and_nothing_is_held_for_it(table):
    a = table.sit("a")
    for number in range(2000):
        table.board.receive(a, unpack(pack_number(FrameKind.PING, 0, number)), 0.0)
    assert table.ended
    table.board.leave(a)
    assert table.board.tenant("ward").held_bytes == 0


@pytest.mark.parametrize("kind", [FrameKind.PONG, FrameKind.WELCOME, FrameKind.CHALLENGE, FrameKind.REFUSED])
def test_what_only_a_relay_says_is_a_fault(table, kind):
    with pytest.raises(PeerFault, match="only a relay says"):
        table.say(table.sit("a"), kind, 0, bytes(8))


def test_frames_for_lines_that_are_gone_are_left_out(table):
    a, b = table.sit("a"), table.sit("b")
    table.joined(a, b)
    table.board.leave(b)
    assert [frame.kind for frame in table.heard(a)] == [FrameKind.CLOSE]
    for kind, payload in ((FrameKind.DATA, b"x"), (FrameKind.CREDIT, bytes(8)), (FrameKind.CLOSE, bytes(8))):
        table.say(a, kind, 1, payload)
    assert table.heard(a) == []
