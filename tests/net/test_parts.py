"""The parts of the network edge that need no network."""

from __future__ import annotations

import logging
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.errors import PeerFault
from p2pfl.net.address import Address, parse_address
from p2pfl.net.channel import REMEMBERED, Counters, Refusals
from p2pfl.net.greeting import LAYOUT, Notice, Word, unpack_notice
from p2pfl.net.limits import ByteBudget, Doorway, Limits, MessagePace
from p2pfl.net.sockets import Backoff


@given(st.binary(max_size=60) | st.binary(min_size=LAYOUT.size, max_size=LAYOUT.size))
def test_any_bytes_are_a_notice_or_a_fault(data):
    try:
        notice = unpack_notice(data)
    except PeerFault:
        return
    assert notice.pack() == data


@given(st.sampled_from(Word), st.binary(min_size=16, max_size=16), st.integers(0, 2**64 - 1))
def test_a_notice_survives_the_wire(word, boot, number):
    assert unpack_notice(Notice(word, boot, number).pack()) == Notice(word, boot, number)


def test_a_budget_is_shared_and_given_back():
    budget = ByteBudget(100)
    first = budget.change(0, 60)
    with pytest.raises(PeerFault, match="50 bytes under way"):
        budget.change(0, 50)
    assert budget.change(0, 40) == 40
    assert budget.change(first, 0) == 0
    assert budget.used == 40


def test_a_message_that_keeps_the_rate_is_never_late():
    pace = MessagePace(min_rate=10, window_s=2)
    for now in range(0, 100, 2):
        pace.note(now, 20, under_way=True)
        assert pace.deadline == now + 2
    pace.note(100, 20, under_way=False)
    assert pace.deadline is None


def test_crumbs_do_not_move_the_deadline():
    pace = MessagePace(min_rate=10, window_s=2)
    pace.note(0, 1000, under_way=True)
    for tenth in range(1, 19):
        pace.note(tenth / 10, 1, under_way=True)
    assert pace.deadline == 2


def test_retries_double_up_to_the_ceiling_and_never_all_at_once():
    limits = Limits(retry_first_s=0.2, retry_ceiling_s=15.0)
    backoff = Backoff(limits, Random(1))
    delays = [backoff.next_s() for _ in range(12)]
    for attempt, delay in enumerate(delays):
        full = min(0.2 * 2**attempt, 15.0)
        assert full / 2 <= delay <= full
    backoff.reset()
    assert backoff.next_s() <= 0.2
    backoff.exhaust()
    assert backoff.next_s() >= 7.5


class Waiter:
    def __init__(self, address):
        self.address = address
        self.aborted = False

    def abort(self):
        self.aborted = True


def test_where_the_doorway_is_crowded_the_one_that_has_waited_longest_goes():
    """Of the newcomer's own address if that has too many, else of the most crowded one: idlers keep nobody out."""
    doorway = Doorway(Limits(pending=4, pending_per_address=2))
    waiters = [Waiter(address) for address in "aaabbcd"]
    for waiter in waiters:
        doorway.enter(waiter)
    assert "".join(w.address for w in waiters if not w.aborted) == "abcd"
    assert [w.aborted for w in waiters] == [True, True, False, True, False, False, False]
    assert (doorway.waiting, doorway.turned_away) == (4, 3)
    doorway.leave(waiters[-1])
    assert doorway.waiting == 3


def test_a_refusal_is_said_once_for_each_peer_and_reason(caplog):
    counters = Counters.of([1, 2])
    refusals = Refusals(counters, logging.getLogger("tests.net"), lambda *_: None)
    for _ in range(3):
        refusals.note(1, "node 1", PeerFault("another key"))
        refusals.note(2, "node 2", PeerFault("another key"))
        refusals.note(2, "node 2", PeerFault("no edge"))
        refusals.note(None, "10.0.0.1", PeerFault("noise"))
        refusals.note(None, "10.0.0.2", PeerFault("noise"))
    assert len(caplog.records) == 4
    assert [counters.peers[1].refusals, counters.peers[2].refusals, counters.unknown.refusals] == [3, 6, 6]
    assert counters.total.refusals == 15


def test_strangers_cannot_fill_the_log(caplog):
    refusals = Refusals(Counters.of([]), logging.getLogger("tests.net"), lambda *_: None)
    for number in range(2 * REMEMBERED):
        refusals.note(None, "10.0.0.1", PeerFault(f"reason {number}"))
    assert len(caplog.records) == REMEMBERED


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:0", Address("localhost", 0)),
        ("192.168.1.20:7000", Address("192.168.1.20", 7000)),
        ("[::1]:7000", Address("::1", 7000)),
        ("pi-1.local:65535", Address("pi-1.local", 65535)),
    ],
)
def test_an_address_reads_as_it_was_written(text, address):
    assert parse_address(text, "listen") == address
    assert str(address) == text
