"""The switchboard without sockets: who may talk to whom, in what order, and how much of it is held."""

from __future__ import annotations

import pytest

from p2pfl.errors import PeerFault
from p2pfl.features.relay import (
    FRAME_BYTES,
    MOST_PAIR_LINES,
    WINDOW_BYTES,
    Closing,
    Frame,
    FrameKind,
    Refusal,
    Seat,
    Switchboard,
    closing_in,
    number_in,
    pack,
    pack_number,
    unpack,
)
from p2pfl.limits import MOST_RELAY_LINES, MOST_SEATS


class Table:
    """A switchboard whose members' connections are lists of frames."""

    def __init__(self, **changes):
        self.board = Switchboard(**changes)
        self.ended: list[tuple[bytes, Refusal | None]] = []

    def sit(self, name: str, federation: str = "ward", dialed: str = "") -> Seat | None:
        key = name.encode().ljust(32, b".")
        end = lambda why: self.ended.append((key, why))  # noqa: E731
        tenant = self.board.tenant(federation)
        return self.board.seat(tenant, key, lambda _: None, end, dialed=dialed)

    def say(self, seat: Seat, kind: FrameKind, line: int = 0, payload: bytes = b"", now: float = 0.0) -> None:
        self.board.receive(seat, unpack(pack(kind, line, payload)), now)

    def give(self, seat: Seat, line: int, size: int) -> None:
        self.board.receive(seat, unpack(pack_number(FrameKind.CREDIT, line, size)), 0.0)

    def heard(self, seat: Seat) -> list[Frame]:
        while self.board.deliver():
            pass
        found = []
        while (raw := seat.take()) is not None:
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
    assert table.board.tenant("ward").held_bytes < WINDOW_BYTES + 4 * FRAME_BYTES
    table.say(a, FrameKind.DATA, 1, b"x")
    assert closing_in(table.heard(a)[-1]) is Closing.OVERRUN
    assert closing_in(table.heard(b)[-1]) is Closing.OVERRUN
    assert table.board.tenant("ward").held_bytes == 0


def test_credit_lets_more_through_and_none_can_be_made_up(table):
    a, b = table.sit("a"), table.sit("b")
    line = table.joined(a, b)
    for size in (0, 1, 2**63):
        with pytest.raises(PeerFault, match="no credit, or more than there were bytes"):
            table.give(b, line, size)
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
    opened = unpack(b.take())
    table.board.receive(b, unpack(pack(FrameKind.ACCEPT, opened.line)), 0.0)
    table.say(a, FrameKind.DATA, 1, b"quiet")
    delivered = 0
    while not b.outbox:
        delivered += table.board.deliver()
    assert delivered <= 2 * (WINDOW_BYTES // 3 + 100)


def test_a_second_process_with_one_key_takes_the_seat_and_the_first_is_told_why(table):
    a, b = table.sit("a"), table.sit("b")
    table.joined(a, b)
    again = table.sit("a")
    assert table.ended == [(a.key, Refusal.REPLACED)]
    assert closing_in(table.heard(b)[-1]) is Closing.GONE
    table.joined(b, again, 7)
    table.board.leave(a)
    assert table.board.tenant("ward").seats[a.place] is again


def test_lines_and_members_are_bounded():
    count = MOST_RELAY_LINES // MOST_PAIR_LINES + 2
    table = Table(most_members=count)
    a, *others = [table.sit(str(number)) for number in range(count)]
    assert table.sit("too many") is None
    for place, other in enumerate(others):
        for number in range(1, MOST_PAIR_LINES + 2):
            table.say(a, FrameKind.OPEN, 100 * place + number, other.key)
        assert closing_in(table.heard(a)[-1]) is Closing.TOO_MANY
    assert len(a.ends) == MOST_RELAY_LINES
    assert [len(other.ends) for other in others] == [MOST_PAIR_LINES] * (count - 2) + [0]
    with pytest.raises(PeerFault, match="a line with the number 1"):
        table.say(a, FrameKind.OPEN, 1, others[0].key)


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


def test_a_flood_of_small_frames_does_not_end_the_member_that_it_goes_to(table):
    """Frames with data are bounded by credit, so any number of small ones may wait for an honest member."""
    a, b = table.sit("a"), table.sit("b")
    line = table.joined(a, b)
    for _ in range(5000):
        table.say(a, FrameKind.DATA, 1, b"x")
    assert table.board.tenant("ward").held_bytes > 5000 * FRAME_BYTES, "their true size counts"
    assert len(table.heard(b)) == 5000
    for _ in range(5000):
        table.give(b, line, 1)
    (credit,) = table.heard(a)
    assert (credit.kind, number_in(credit)) == (FrameKind.CREDIT, 5000)
    assert not table.ended


def fill(table: Table, one: Seat, other: Seat, lines: int) -> None:
    """Send what the windows of some lines allow to a member that does not read."""
    for number in range(len(one.ends) + 1, len(one.ends) + 1 + lines):
        table.say(one, FrameKind.OPEN, number, other.key)
        table.say(other, FrameKind.ACCEPT, max(other.ends))
        table.say(one, FrameKind.DATA, number, bytes(WINDOW_BYTES))


def test_members_that_do_not_read_cannot_stop_those_that_do(table, monkeypatch):
    """Of the two members that fill the relay nothing more is read, not even when they come again; of others it is."""
    monkeypatch.setattr("p2pfl.features.relay.switchboard.RELAY_HELD_BYTES", 5 * WINDOW_BYTES)
    sender, other, quiet = (table.sit(name) for name in ("sender", "other", "quiet"))
    fill(table, sender, other, 4)
    assert not table.board.is_full(sender)
    fill(table, sender, other, 2)
    assert table.board.is_full(sender)
    table.board.leave(sender)
    assert table.board.is_full(table.sit("sender"))
    assert not table.board.is_full(quiet)
    table.board.relieve()
    assert [key for key, _ in table.ended] == [sender.key], "it is not that bad yet"
    table.heard(other)
    assert not table.board.is_full(sender)
    assert table.board.tenant("ward").held_bytes == 0
    assert not table.board.tenant("ward").held_of


def test_above_the_last_bound_nobody_is_read_and_the_member_for_which_most_waits_is_ended(table, monkeypatch):
    monkeypatch.setattr("p2pfl.features.relay.switchboard.RELAY_HELD_BYTES", 5 * WINDOW_BYTES)
    senders = [table.sit(f"sender{number}") for number in range(3)]
    slow, slower, quiet = (table.sit(name) for name in ("slow", "slower", "quiet"))
    for sender in senders:
        fill(table, sender, slow, 1)
        fill(table, sender, slower, 3)
    assert all(table.board.is_full(seat) for seat in (*senders, slow, slower, quiet))
    table.board.relieve()
    assert [key for key, _ in table.ended] == [slower.key]
    while table.board.deliver():
        pass
    assert not table.board.is_full(quiet)
    assert table.board.tenant("ward").held_bytes < 4 * WINDOW_BYTES


def test_small_frames_cost_their_turn(table):
    flood = table.sit("f", "flood"), table.sit("g", "flood")
    table.joined(*flood)
    for _ in range(2000):
        table.say(flood[0], FrameKind.DATA, 1, b"x")
    a, b = table.sit("a"), table.sit("b")
    table.board.receive(a, unpack(pack(FrameKind.OPEN, 1, b.key)), 0.0)
    table.board.receive(b, unpack(pack(FrameKind.ACCEPT, unpack(b.take()).line)), 0.0)
    table.say(a, FrameKind.DATA, 1, b"quiet")
    delivered = 0
    while not b.outbox:
        delivered += table.board.deliver() > 0
    assert delivered <= 20


def test_who_makes_up_names_of_the_relay_takes_few_seats(table):
    seats = [table.sit("a", dialed=f"relay{number}:1/p2pfl") for number in range(20)]
    assert sum(seat is not None for seat in seats) == MOST_SEATS
    assert table.sit("a", dialed="relay0:1/p2pfl") is not None, "in place of its old one"
    assert table.sit("b") is not None


def test_who_signs_in_by_another_name_of_the_relay_takes_nobodys_seat(table):
    """A relay that passes a member's answer on to another relay is alone there."""
    a, b = (table.sit(name, dialed="honest:1/p2pfl") for name in "ab")
    double = table.sit("a", dialed="liar:1/p2pfl")
    assert not table.ended
    table.say(double, FrameKind.OPEN, 1, b.key)
    assert closing_in(table.heard(double)[-1]) is Closing.NOT_HERE
    table.joined(b, a)
    assert not table.heard(double)
