"""What refusals and strangers may cost of the log, and that nobody can use up what another needs of it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from nodes import UPGRADE, bytes_of, most_bytes_an_hour

from p2pfl.crypto import FederationMismatch, UnlistedKey
from p2pfl.crypto.identity import public_text
from p2pfl.errors import PeerFault
from p2pfl.limits import REASON_VARIANTS
from p2pfl.net import LINE_BYTES, MEMBER, STAMP_BYTES, STRANGERS, Counters, LeftBehindFault, Refusals, SealedFault, clip
from p2pfl.net import transport as refusals_module

FORM = logging.Formatter("%(asctime)s node0 %(levelname)s %(message)s", datefmt="%H:%M:%S")


@pytest.fixture
def door(caplog):
    """Refusals of a node with the members 1 and 2, its log at DEBUG."""
    caplog.set_level(logging.DEBUG)
    return Refusals(Counters.of([1, 2]), logging.getLogger("tests.net"), lambda *_: None)


def lines(caplog, level=logging.INFO):
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


def size(caplog):
    return sum(len(FORM.format(record).encode()) + 1 for record in caplog.records)


def test_a_refusal_is_said_once_for_each_peer_and_reason(door, caplog):
    for _ in range(3):
        door.note(1, "node 1", PeerFault("another key"))
        door.note(2, "node 2", PeerFault("another key"))
        door.note(2, "node 2", PeerFault("no edge"))
        door.note(None, "10.0.0.1", PeerFault("noise"))
        door.note(None, "10.0.0.2", PeerFault("noise"))
    assert len(lines(caplog)) == 4
    counters = door.counters
    assert [counters.peers[1].refusals, counters.peers[2].refusals, counters.unknown.refusals] == [3, 6, 6]
    assert counters.total.refusals == 15


@pytest.mark.parametrize(
    "made_up",
    [
        lambda number: PeerFault(f"m1 has {number} bytes instead of 48: another version of p2pfl?"),
        lambda _: UnlistedKey(os.urandom(32)),
        lambda number: PeerFault("reason " + "ab" * number),
    ],
    ids=["figures", "keys", "wordings"],
)
def test_made_up_reasons_leave_room_for_a_members_refusal(door, caplog, made_up):
    for number in range(1, 301):
        door.note(None, "10.0.0.1", made_up(number))
    door.note(1, "node 1", PeerFault("listed, but not a neighbor"))
    assert "refused node 1: listed, but not a neighbor" in lines(caplog)[-1]
    assert size(caplog) <= bytes_of(STRANGERS) + bytes_of(MEMBER)


def test_reasons_that_differ_in_figures_leave_room_for_another_reason_of_strangers(door, caplog):
    for number in range(300):
        door.note(None, "10.0.0.1", PeerFault(f"m1 has {number} bytes"))
        door.note(None, "10.0.0.1", PeerFault(f"a sealed chunk of {number} bytes"))
    door.note(None, "10.0.0.2", UnlistedKey(bytes(32)))
    said = lines(caplog)
    assert len(said) == 2 * REASON_VARIANTS + 1
    assert public_text(bytes(32)) in said[-1]


def test_the_key_of_a_former_member_is_logged_with_its_name_and_as_p2pfl_key_prints_it(caplog):
    former, stranger = os.urandom(32), os.urandom(32)
    log = logging.getLogger("tests.net")
    refusals = Refusals(Counters.of([1]), log, lambda *_: None, name_of_key={former: "pi3"}.get)
    refusals.note(None, "10.0.0.3", UnlistedKey(former))
    refusals.note(None, "10.0.0.4", UnlistedKey(stranger))
    first, second = lines(caplog)
    assert first.startswith(f"refused 10.0.0.3 (pi3, no longer a member): the key {public_text(former)} is not listed")
    assert second.startswith(f"refused 10.0.0.4: the key {public_text(stranger)} is not listed")


def test_one_member_cannot_use_up_what_another_needs(door, caplog):
    for number in range(300):
        door.note(1, "node 1", SealedFault("made up " + "ab" * number))
    door.note(2, "node 2", PeerFault("no edge"))
    assert len(lines(caplog)) == MEMBER.reasons + 1
    assert "refused node 2: no edge" in lines(caplog)[-1]


def test_who_sits_at_a_members_address_cannot_use_up_what_the_member_needs(caplog):
    """Nothing of it is sealed. The member's own refusal, and the alarm about its file, come behind it."""
    caplog.set_level(logging.DEBUG)
    alarms = []
    refusals = Refusals(Counters.of([1]), logging.getLogger("tests.net"), lambda *alarm: alarms.append(alarm))
    for number in range(1, 301):
        refusals.note(1, "node 1 at 10.0.0.1:8470", PeerFault("made up " + "ab" * number))
    assert len(lines(caplog)) == MEMBER.unsealed
    refusals.note(1, "node 1", SealedFault("that node does not take this one for a neighbor"))
    refusals.note(1, "node 1", FederationMismatch(bytes(32), ("training.rounds",)))
    assert "does not take this one" in lines(caplog)[MEMBER.unsealed]
    assert [alarm[:2] for alarm in alarms] == [("federation-differs", 1)]
    assert size(caplog) <= bytes_of(MEMBER)


def test_what_an_alarm_says_already_is_counted_and_not_said_again(door, caplog):
    """A removed node that dials: each former neighbor says that it is not listed any more."""
    for peer in (1, 2):
        for _ in range(3):
            door.note(peer, f"node {peer} at 10.0.0.{peer}:8470", LeftBehindFault("it has version 3 of the members"))
    assert lines(caplog) == []
    assert door.counters.total.refusals == 6
    door.begin_hour()
    assert lines(caplog) == ["in the last hour also refused: node 1 3 times, node 2 3 times"]


def test_a_member_with_ever_other_differences_is_few_alarms(caplog):
    caplog.set_level(logging.DEBUG)
    alarms = []
    refusals = Refusals(Counters.of([1]), logging.getLogger("tests.net"), lambda *alarm: alarms.append(alarm))
    for number in range(1, 301):
        keys = tuple(f"a.key.that.has.quite.a.long.name.{bit}" for bit in range(40) if number >> bit & 1 or bit > 9)
        refusals.note(1, "node 1", FederationMismatch(bytes(32), keys))
    assert 0 < len(alarms) <= MEMBER.reasons
    assert max(len(text) for _, _, text in alarms) <= 200
    assert size(caplog) <= bytes_of(MEMBER)


def test_each_hour_begins_anew_and_tells_what_was_left_out(door, caplog):
    for _ in range(40):
        door.note(None, "10.0.0.1", PeerFault("noise"))
        door.note(2, "node 2", PeerFault("no edge"))
    caplog.clear()
    door.begin_hour()
    assert lines(caplog) == [
        "in the last hour also refused: strangers 39 times (7 other lines), node 2 39 times (19 other lines)"
    ]
    caplog.clear()
    door.note(None, "10.0.0.1", PeerFault("noise"))
    door.note(2, "node 2", PeerFault("no edge"))
    assert len(lines(caplog, logging.WARNING)) == 2
    door.begin_hour()
    door.begin_hour()
    assert len(lines(caplog)) == 2, "nothing was left out"


async def test_the_hour_ends_by_the_clock(federation, caplog, monkeypatch):
    monkeypatch.setattr(refusals_module, "HOUR_S", 0.05)
    async with federation.node(0) as a:
        for _ in range(2):
            caplog.clear()
            for _ in range(2):
                a.links._refusals.note(None, "10.0.0.1", PeerFault("noise"))
            await a.until(lambda: any("strangers 1 times" in line for line in lines(caplog)))


def test_what_is_mentioned_beside_refusals_is_bounded_at_any_level(door, caplog):
    for number in range(5000):
        door.mention(None, "%s left before the session: %s", f"10.0.{number % 256}.1", "x" * 2000)
    assert len(caplog.records) == STRANGERS.mentions
    assert size(caplog) <= bytes_of(STRANGERS)
    caplog.set_level(logging.INFO)
    door.mention(1, "not mentioned at this level")
    door.mention(1, "mentioned", level=logging.INFO)
    assert lines(caplog) == ["mentioned"]


def test_a_line_is_one_line_and_short_whatever_is_in_it():
    text = clip("a\nb\x1b[2J" + "\N{SNOWMAN}" * 1000 + "\ud800", LINE_BYTES - STAMP_BYTES)
    assert text.startswith("a?b?[2J")
    assert text.isprintable()
    assert len(text.encode()) <= LINE_BYTES - STAMP_BYTES


def test_the_page_on_security_states_the_bound():
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "security.md").read_text()
    strangers, member = bytes_of(STRANGERS) >> 10, bytes_of(MEMBER) >> 10
    stated = f"{strangers} KiB an hour for all strangers together and {member} KiB for each member"
    assert stated in " ".join(page.split())
    assert refusals_module.HOUR_S == 3600.0


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (UPGRADE, "127.0.0.1 took too long to become a session"),
        (UPGRADE, "127.0.0.1 left before the session: "),
        (b"GET / HTTP/1.1\r\nbad header\r\n\r\n", "broken request from 127.0.0.1: "),
    ],
    ids=["dawdles", "goes", "speaks no HTTP"],
)
async def test_who_is_not_refused_and_gets_no_further_is_mentioned(federation, quick, caplog, said, line):
    caplog.set_level(logging.DEBUG)
    async with federation.node(0, limits=replace(quick, handshake_s=0.3)) as a:
        reader, writer = await asyncio.open_connection("127.0.0.1", a.links.port)
        writer.write(said)
        if "left" in line:
            await reader.readuntil(b"\r\n\r\n")
            writer.transport.abort()
        await a.until(lambda: [text for text in lines(caplog, logging.DEBUG) if text.startswith(line)])
        writer.transport.abort()


async def test_a_neighbor_that_is_not_there_is_said_once_and_again_when_it_has_been_there(federation, caplog):
    caplog.set_level(logging.DEBUG)

    def levels():
        return [record.levelno for record in caplog.records if "does not answer yet" in record.getMessage()]

    async with federation.node(0) as placeholder:
        address = placeholder.address()
    async with federation.node(1, {0: address}) as b:
        await b.until(lambda: len(levels()) >= 3)
        async with federation.node(0, listen=address):
            await b.until(lambda: b.open)
        before = len(levels())
        await b.until(lambda: len(levels()) >= before + 3)
    assert levels()[:3] == [logging.INFO, logging.DEBUG, logging.DEBUG]
    assert levels().count(logging.INFO) == 2


def strangers(port, count):
    """Blocking, in a thread: each says something else and goes at once, by a reset or not."""
    for number in range(count):
        with socket.create_connection(("127.0.0.1", port), 5) as one:
            message = os.urandom(number % 110)
            match number % 5:
                case 0:
                    one.sendall(
                        b"GET /" + os.urandom(40).hex().encode() + b" HTTP/9.9\r\n" + os.urandom(99) + b"\r\n\r\n"
                    )
                case 1:
                    one.sendall(UPGRADE + bytes([0x82, 0x80 | len(message)]) + bytes(4) + message)
                case 2:
                    one.sendall(UPGRADE + bytes([0x88, 0x81]) + bytes(4) + os.urandom(1))
                case 3:
                    one.sendall(UPGRADE + bytes([0x81, 0x80 | len(message)]) + bytes(4) + message)
                case 4:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    one.sendall(UPGRADE)
            heard = b"" if number % 5 < 4 else b"\r\n\r\n\x88"
            with suppress(ConnectionError):
                while not heard.partition(b"\r\n\r\n")[2]:  # the node's goodbye follows its head
                    heard += (more := one.recv(65536))
                    if not more:
                        break


@pytest.mark.long
@pytest.mark.slow
async def test_thousands_of_strangers_leave_a_short_log_and_room_for_a_members_refusal(federation, caplog, monkeypatch):
    """With the level at DEBUG, of all loggers together, though all have as much of the loop's time as they like."""
    caplog.set_level(logging.DEBUG)
    for share in ("limits.ADDRESS_SHARE", "limits.STRANGERS_SHARE", "acceptor.ACCEPTING_SHARE"):
        monkeypatch.setattr(f"p2pfl.net.{share}", 1e9)
    async with federation.node(0, neighbors=frozenset({1, 2})) as a:
        for number in range(300):
            a.links._refusals.note(None, f"10.0.0.{number}", PeerFault(f"made up {os.urandom(20).hex()} {number}"))
        await asyncio.to_thread(strangers, a.links.port, 3000)
        assert a.links.counters.unknown.refusals > 1000
        before = len(lines(caplog, logging.WARNING))
        assert before < STRANGERS.reasons, "no text of theirs makes a reason"
        assert len(caplog.records) <= before + STRANGERS.mentions
        async with (
            federation.node(3, {0: a.address()}, log=logging.getLogger("elsewhere")) as c,
            federation.node(1, {0: a.address()}, log=logging.getLogger("elsewhere")) as b,
        ):
            await b.until(lambda: b.open)
            await c.until(lambda: c.links.counters.peers[0].refusals)
        after = lines(caplog, logging.WARNING)[before:]
        assert any("refused node 3" in line and "not a neighbor" in line for line in after)
    ours = [record for record in caplog.records if record.name != "elsewhere"]
    assert sum(len(FORM.format(record).encode()) + 1 for record in ours) <= most_bytes_an_hour(members=7)
    assert {record.name for record in ours} == {"tests.net"}
