"""A long body goes on in the next session, from what has arrived; chunks follow the rate of the line."""

from __future__ import annotations

import asyncio
import mmap
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_kit import MemoryLine, MemoryNetwork
from message_kit import HELLO, REPLY, REQUEST
from msgspec import structs
from nodes import DEADLINE_S, Federation

from p2pfl.core import Hello, Reply, Request, request_digest
from p2pfl.errors import PeerFault
from p2pfl.limits import CHUNK_BYTES, LEAST_CHUNK_BYTES
from p2pfl.net import (
    FIRST_CHUNK_BYTES,
    RECEIPT_S,
    RECEIPTS_AT_ONCE,
    BodySender,
    ChunkPace,
    GoneError,
    KeptParts,
    ReceiptClock,
)
from p2pfl.wire import Assembler, PartHeld, PartialBody, Receipt, split

SEAL_BYTES = 17


def request_of(seq, body):
    bare = structs.replace(REQUEST, seq=seq, version=seq, body=body)
    return structs.replace(bare, digest=request_digest(bare))


def reply_to(request, body):
    return structs.replace(REPLY, seq=request.seq, request_digest=request.digest, body=body)


class Edge:
    """Two ends that exchange bodies as the core does, over lines that end after so many bytes; the last one lasts."""

    def __init__(self, bodies, cuts=(), **changes):
        self.requests = [request_of(seq, body) for seq, body in enumerate(bodies, 1)]
        self.cuts, self.changes = list(cuts), changes
        self.left = None
        self.applied, self.replies, self.faults = [], [], []
        self.sent_in = []
        """The bytes that each end sent over each line."""
        self.chunks_in = [0, 0]
        """The bytes of long bodies that each end sent over the latest line."""
        self.reads_all = False
        """Whether all that was sent is read before a line ends."""
        self.last_reply = None
        self.over = asyncio.Event()
        self.nodes = []
        self.used_at_hello = []
        """The bytes of unfinished messages at the upper end when it hears Hello."""

    @property
    def pending(self):
        return self.requests[len(self.replies)] if len(self.replies) < len(self.requests) else None

    def begin_line(self):
        self.left = self.cuts.pop(0) if self.cuts else None
        self.sent_in.append([0, 0])
        self.chunks_in = [0, 0]

    async def run(self, monkeypatch):
        network, push = MemoryNetwork(), MemoryLine._push
        pair = MemoryLine.pair

        def new_pair():
            self.begin_line()
            one, other = pair()
            one.end, other.end = 0, 1
            return one, other

        async def cut_push(line, data):
            if self.left is not None:
                self.left -= len(data)
                if self.left < 0:
                    if self.reads_all:
                        await self.until_read(line.other)
                    await line.close(0)
                    raise GoneError("cut")
            self.sent_in[-1][line.end] += len(data)
            self.chunks_in[line.end] += (len(data) - SEAL_BYTES) * (len(data) > LEAST_CHUNK_BYTES)
            await push(line, data)

        monkeypatch.setattr(MemoryLine, "pair", new_pair)
        monkeypatch.setattr(MemoryLine, "_push", cut_push)
        federation = Federation()
        both = {"transport": network.transport, "neighbors": frozenset({0, 1})} | self.changes
        upper = federation.new(1, on_open=self.opened, on_message=self.upper_hears, **both | {"neighbors": {0}})
        async with upper.links:
            lower = federation.new(
                0, {1: upper.address()}, on_open=self.opened, on_message=self.lower_hears, **both | {"neighbors": {1}}
            )
            self.nodes = [lower, upper]
            async with lower.links, asyncio.timeout(DEADLINE_S):
                await self.over.wait()
            self.faults = [node.links.counters.total.faults for node in self.nodes]

    async def until_read(self, line):
        place = self.nodes[line.end].links._table.places[1 - line.end]
        sent = self.chunks_in[1 - line.end]
        while place.link is not None and place.link._inbox._assembler.came < sent:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.001)

    def opened(self, peer, session):
        own = 1 - peer
        self.nodes[own].open[peer] = session
        digest = b""
        if own == 1 and self.last_reply is not None:
            digest = self.last_reply.request_digest
        self.nodes[own].links.send(peer, session, structs.replace(HELLO, seq=len(self.applied), request_digest=digest))

    def upper_hears(self, peer, session, message):
        if not isinstance(message, Request):
            self.used_at_hello.append(self.nodes[1].links._table.shared.budget.used)
            return
        if message.seq == len(self.applied) + 1:
            assert request_digest(message) == message.digest
            self.applied.append(bytes(message.body))
            self.last_reply = reply_to(message, self.applied[-1][::-1])
        assert message.digest == self.last_reply.request_digest
        self.nodes[1].links.send(peer, session, self.last_reply)

    def lower_hears(self, peer, session, message):
        if isinstance(message, Reply) and self.pending and message.request_digest == self.pending.digest:
            self.replies.append(bytes(message.body))
            if self.pending is None:
                self.over.set()
        if isinstance(message, Hello | Reply) and self.pending is not None:
            self.nodes[0].links.send(peer, session, self.pending)


def body_of(size, seed=0):
    return random.Random(seed).randbytes(size)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(1, 120_000), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 300_000), max_size=6),
)
def test_wherever_lines_are_cut_every_body_arrives_and_is_applied_once(sizes, cuts):
    bodies = [body_of(size, seed) for seed, size in enumerate(sizes)]
    edge = Edge(bodies, cuts)
    with pytest.MonkeyPatch.context() as patch:
        asyncio.run(edge.run(patch))
    assert edge.applied == bodies
    assert edge.replies == [body[::-1] for body in bodies]
    assert edge.faults == [0, 0]


OPENING_BYTES = 8_000
"""Handshake, greetings, offers, receipts and seals of one session, with room."""


async def test_a_request_goes_on_where_it_was_cut(monkeypatch):
    body = body_of(1_000_000)
    edge = Edge([body], [600_000])
    edge.reads_all = True
    await edge.run(monkeypatch)
    assert edge.applied == [body]
    first, second = edge.sent_in
    assert first[0] > 600_000 - CHUNK_BYTES - OPENING_BYTES
    assert second[0] < len(body) - first[0] + 2 * OPENING_BYTES


async def test_a_reply_goes_on_where_it_was_cut_and_the_request_is_not_sent_again(monkeypatch):
    body = body_of(1_000_000)
    edge = Edge([body], [1_600_000])
    edge.reads_all = True
    await edge.run(monkeypatch)
    assert edge.replies == [body[::-1]]
    first, second = edge.sent_in
    assert first[1] > 600_000 - CHUNK_BYTES - 3 * OPENING_BYTES
    assert second[0] < OPENING_BYTES
    assert second[1] < len(body) - first[1] + 2 * OPENING_BYTES


async def test_a_part_that_has_changed_in_memory_costs_one_body_from_the_beginning_and_no_blame(monkeypatch):
    keep, body = KeptParts.keep, body_of(1_000_000)

    def spoil(parts, peer, part):
        if part is not None:
            part.buffer[part.size // 2] ^= 1
        keep(parts, peer, part)

    monkeypatch.setattr(KeptParts, "keep", spoil)
    edge = Edge([body], [600_000])
    await edge.run(monkeypatch)
    assert edge.applied == [body]
    assert edge.faults == [0, 0]
    assert edge.sent_in[1][0] > len(body)


async def test_a_newer_request_replaces_the_one_that_was_cut(monkeypatch):
    """The transaction is void: nothing of the old body may get into the new one."""
    old, new = request_of(1, body_of(1_000_000, 1)), request_of(1, body_of(1_000_000, 2))
    edge = Edge([old.body], [600_000])
    begin = edge.begin_line

    def begin_line():
        begin()
        edge.requests = [old if len(edge.sent_in) == 1 else new]

    edge.begin_line = begin_line
    await edge.run(monkeypatch)
    assert edge.applied == [new.body]
    assert edge.faults == [0, 0]


async def test_with_a_neighbor_of_the_version_before_a_body_begins_anew(monkeypatch):
    monkeypatch.setattr("p2pfl.net.link.PROTOCOL_VERSION", 9)
    body = body_of(1_000_000)
    edge = Edge([body, body[:300_000]], [600_000, 1_600_000])
    await edge.run(monkeypatch)
    assert edge.applied == [body, body[:300_000]]
    assert edge.faults == [0, 0]
    assert edge.sent_in[1][0] > len(body)


async def test_a_restart_drops_what_was_half_there(federation):
    """It is in memory alone: another process has nothing to announce."""
    async with federation.node(0) as a:
        assert not a.links._table.shared.parts.size_bytes


# --- memory -------------------------------------------------------------------------------------------------------


def part_of(size, code=2):
    return PartialBody(code, b"head", size, mmap.mmap(-1, 4096), 1)


def test_a_liar_who_begins_thousands_holds_one_part():
    parts = KeptParts(lambda: 10_000)
    for size in range(1, 2000):
        parts.keep(7, part_of(size))
        assert len(parts._parts) == 1
    parts.keep(7, None)
    assert not parts.size_bytes


def test_parts_of_all_neighbors_share_a_bound_and_the_oldest_goes_first():
    parts = KeptParts(lambda: 10_000)
    for peer in range(5):
        parts.keep(peer, part_of(3000))
    assert [peer for peer in range(5) if parts.take(peer)] == [2, 3, 4]
    parts.keep(1, part_of(10_001))
    assert not parts.size_bytes


async def test_a_neighbor_that_is_removed_leaves_nothing(federation):
    async with federation.node(0) as a:
        table = a.links._table
        table.shared.parts.keep(1, part_of(100))
        table.amend([2])
        assert not table.shared.parts.size_bytes


async def test_a_part_takes_its_share_of_the_memory_of_its_session(monkeypatch):
    edge = Edge([body_of(1_000_000)], [600_000], max_body_bytes=1_000_000)
    seen, keep = [], KeptParts.keep

    def watch(parts, peer, part):
        keep(parts, peer, part)
        if part is not None:
            seen.append((len(parts._parts), parts.size_bytes, edge.nodes[1].links._table.shared.budget.used))

    monkeypatch.setattr(KeptParts, "keep", watch)
    await edge.run(monkeypatch)
    assert seen == [(1, 1_000_000, 0)]
    assert edge.used_at_hello == [0, 1_000_000]
    shared = edge.nodes[1].links._table.shared
    assert (shared.parts.size_bytes, shared.budget.used) == (0, 0)


# --- the size of chunks -------------------------------------------------------------------------------------------


def test_chunks_follow_the_rate_and_stay_within_their_bounds():
    pace = ChunkPace()
    assert pace.chunk_bytes == FIRST_CHUNK_BYTES
    pace.begin(0.0)
    now = came = 0
    for rate, expected in ((6250.0, 9375), (50_000.0, 75_000), (1e8, CHUNK_BYTES), (100.0, LEAST_CHUNK_BYTES)):
        for _ in range(20):
            pace.send(int(rate))
            now, came = now + 1, came + int(rate)
            pace.hear(Receipt(size=came), now)
        assert pace.chunk_bytes == pytest.approx(expected, rel=0.02)


def test_receipts_in_a_bunch_measure_nothing():
    pace = ChunkPace()
    pace.begin(0.0)
    pace.send(10_000_000)
    pace.hear(Receipt(size=10_000), 1.0)
    before = pace.chunk_bytes
    for size in range(20_000, 1_000_000, 10_000):
        pace.hear(Receipt(size=size), 1.001)
    assert pace.chunk_bytes == before


def test_a_bound_on_what_is_sent_bounds_chunks():
    assert ChunkPace(2000.0).chunk_bytes == LEAST_CHUNK_BYTES
    assert ChunkPace(8000.0).chunk_bytes == 12_000


def test_receipts_for_more_than_was_sent_or_too_many_of_them_are_faults():
    sender = BodySender(None)
    with pytest.raises(PeerFault, match="a receipt for 1 bytes"):
        sender.hear(Receipt(size=1), 0.0, 30.0)
    sender = BodySender(None)
    for _ in range(int(RECEIPTS_AT_ONCE)):
        sender.hear(Receipt(size=0), 0.0, 30.0)
    with pytest.raises(PeerFault, match="more receipts"):
        sender.hear(Receipt(size=0), 0.0, 30.0)


async def test_a_chunk_may_wait_as_long_as_more_arrives_at_the_other_end():
    async def work(_size, act):
        return act()

    sender, clock = BodySender(None), asyncio.get_running_loop().time
    for _ in await sender.cut(request_of(1, body_of(50_000)), 10, work):
        pass
    now = clock()
    async with asyncio.timeout_at(now + 30.0) as sender.draining:
        await asyncio.sleep(0)
        sender.hear(Receipt(size=20_000), now + 20.0, 30.0)
        assert sender.draining.when() == now + 50.0
        sender.hear(Receipt(size=20_000), now + 40.0, 30.0)
        assert sender.draining.when() == now + 50.0


async def test_a_part_that_is_told_of_after_a_body_has_begun_is_gone():
    async def work(_size, act):
        return act()

    sender, request = BodySender(None), request_of(1, body_of(50_000))
    assembler = Assembler(50_000)
    for chunk in list(split(request, chunk_bytes=lambda: 10_000))[:3]:
        assembler.feed(bytes(chunk))
    held = assembler.detach().announce()
    await sender.cut(request, 10, work)
    sender.hear(held, 0.0, 30.0)
    whole = [bytes(chunk) for chunk in await sender.cut(request, 10, work)]
    assert sum(map(len, whole)) > 50_000
    sender = BodySender(None)
    sender.hear(PartHeld(size=2**53 - 1, digest=bytes(16)), 0.0, 30.0)
    assert [bytes(chunk) for chunk in await sender.cut(request, 10, work)] == whole


def test_progress_is_told_of_at_once_and_then_from_time_to_time():
    clock = ReceiptClock()
    told = [clock.due(came, now, under_way=True) for came, now in ((10, 0.0), (20, 0.1), (30, RECEIPT_S), (30, 9.0))]
    assert told == [Receipt(size=10), None, Receipt(size=30), None]
    assert clock.due(40, 9.0, under_way=False) is None
    assert clock.due(40, 9.1, under_way=True) is None, "nothing of the next body is here"
    assert clock.due(50, 9.1, under_way=True) == Receipt(size=50)


def test_an_honest_end_sends_fewer_receipts_than_are_allowed_however_many_bodies_come():
    clock, sender, came = ReceiptClock(), BodySender(None), 0
    sender._pace.send(2**40)
    for body in range(5000):
        for part in range(3):
            came += 300_000
            if (receipt := clock.due(came, now := body / 50 + part / 200, under_way=part < 2)) is not None:
                sender.hear(receipt, now, 30.0)


def test_the_part_of_a_body_is_told_of_once_in_a_session():
    sender = BodySender(None)
    sender.hear(PartHeld(size=1, digest=bytes(16)), 0.0, 30.0)
    with pytest.raises(PeerFault, match="parts of two bodies"):
        sender.hear(PartHeld(size=1, digest=bytes(16)), 9.0, 30.0)
