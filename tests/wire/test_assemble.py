"""Frames cut into chunks and put together again; any other cut than ours is refused."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from p2pfl.core import Ready, Reply, Request, request_digest
from p2pfl.errors import PeerFault
from p2pfl.limits import CHUNK_BYTES, LEAST_CHUNK_BYTES
from p2pfl.wire import PREFIX_BYTES, Assembler, UnfinishedFrame, begins_with, decode_prefix, encode, split

REQUEST = Request(
    incarnation=1, seq=2, version=3, echo=None, weight=0.5, staleness=1.0, pace_s=0.25, audit=b"", body=b""
)
REPLY = Reply(incarnation=1, seq=2, request_digest=bytes(16), version=4, factor=0.5, pace_s=2.0, body=b"reply")
HEAD_BYTES = len(encode(REQUEST)[0])
LIMIT = 4 * CHUNK_BYTES


def request_of(size, seed=0):
    body = np.random.default_rng(seed).bytes(size)
    bare = replace(REQUEST, body=body)
    return replace(bare, digest=request_digest(bare))


def chunks_of(message):
    return [bytes(chunk) for chunk in split(message)]


def feed_all(assembler, chunks):
    return [message for chunk in chunks for message in assembler.feed(chunk)]


LONGEST_SHORT = CHUNK_BYTES - HEAD_BYTES
SHORT = chunks_of(REPLY)[0]


@pytest.mark.parametrize(
    ("size", "chunk_sizes"),
    [
        (0, [HEAD_BYTES]),
        (100, [HEAD_BYTES + 100]),
        (LONGEST_SHORT, [CHUNK_BYTES]),
        (LONGEST_SHORT + 1, [HEAD_BYTES, LONGEST_SHORT + 1]),
        (CHUNK_BYTES, [HEAD_BYTES, CHUNK_BYTES]),
        (CHUNK_BYTES + 1, [HEAD_BYTES, CHUNK_BYTES, 1]),
        (2 * CHUNK_BYTES, [HEAD_BYTES, CHUNK_BYTES, CHUNK_BYTES]),
        (LIMIT, [HEAD_BYTES, *[CHUNK_BYTES] * 4]),
    ],
)
def test_a_message_of_any_length_is_cut_in_one_way_and_comes_back(size, chunk_sizes):
    message = request_of(size)
    chunks = chunks_of(message)
    assert [len(chunk) for chunk in chunks] == chunk_sizes
    assert feed_all(Assembler(LIMIT), chunks) == [message]


def test_messages_follow_each_other():
    messages = [request_of(CHUNK_BYTES), Ready(version=1), REPLY, request_of(3 * CHUNK_BYTES + 5), REPLY]
    chunks = [chunk for message in messages for chunk in chunks_of(message)]
    assert feed_all(Assembler(LIMIT), chunks) == messages


def test_the_bytes_under_way_are_known():
    assembler = Assembler(LIMIT)
    first, second, third = chunks_of(request_of(CHUNK_BYTES + 7))
    seen = []
    for chunk in (first, second, third, chunks_of(REPLY)[0]):
        assembler.feed(chunk)
        seen.append(assembler.pending_bytes)
    assert seen == [CHUNK_BYTES + 7, CHUNK_BYTES + 7, 0, 0]


def test_the_bytes_under_way_may_be_asked_for_while_the_last_chunk_is_being_fed():
    """By the event loop, which has something to send, while a worker thread feeds."""

    class Fed(Assembler):
        looks = 0

        @property
        def _pending(self):
            self.looks += 1
            return self.last if self.looks == 1 else None

        @_pending.setter
        def _pending(self, value):
            self.last = value

    assembler = Fed(LIMIT)
    head, _ = encode(request_of(LIMIT))
    prefix = decode_prefix(head[:PREFIX_BYTES], max_body_bytes=LIMIT)
    assembler.last = UnfinishedFrame(prefix, prefix.kind, head[PREFIX_BYTES:])
    assert assembler.pending_bytes == LIMIT


def test_a_long_message_is_refused_by_its_header_before_its_body_comes():
    head, _ = encode(request_of(LIMIT))
    spoiled = head[:PREFIX_BYTES] + bytes([0xC1]) + head[PREFIX_BYTES + 1 :]
    with pytest.raises(PeerFault, match="Request with a malformed header"):
        Assembler(LIMIT).feed(spoiled)


def test_long_bodies_are_sent_without_a_copy():
    body = np.zeros(CHUNK_BYTES, np.float32)
    _, *views = split(replace(REQUEST, body=body))
    assert all(np.shares_memory(np.frombuffer(view, np.uint8), body) for view in views)


# --- chunks as the sender likes, and bodies that go on --------------------------------------------------------------


def cut(message, size, start=0):
    return [bytes(chunk) for chunk in split(message, start=start, chunk_bytes=lambda: size)]


@pytest.mark.parametrize("size", [LEAST_CHUNK_BYTES, LEAST_CHUNK_BYTES + 1, 70_001, CHUNK_BYTES])
@pytest.mark.parametrize("body_bytes", [1, LEAST_CHUNK_BYTES, 70_000, LIMIT])
def test_chunks_may_have_any_size_within_the_bounds(size, body_bytes):
    message = request_of(body_bytes)
    chunks = cut(message, size)
    assert max(map(len, chunks)) <= size
    assert feed_all(Assembler(LIMIT), [*chunks, *chunks_of(REPLY)]) == [message, REPLY]


@pytest.mark.parametrize(
    "chunks",
    [
        [*cut(request_of(50_000), 10_000)[:2], bytes(LEAST_CHUNK_BYTES - 1)],
        [*cut(request_of(50_000), 40_000)[:2], bytes(10_001)],
        [cut(request_of(50_000), 10_000)[0][:-1]],
        [chunks_of(request_of(100))[0][:HEAD_BYTES]],
        [cut(request_of(50_000), 10_000, start=10_000)[0]],
    ],
    ids=["too small", "more than the body", "half a head", "a short message in pieces", "goes on with nothing"],
)
def test_other_cuts_are_refused_there_too(chunks):
    assembler = Assembler(LIMIT)
    *good, bad = chunks
    feed_all(assembler, good)
    with pytest.raises(PeerFault):
        assembler.feed(bad)
    assert assembler.detach() is None


def test_a_body_goes_on_from_the_part_that_an_assembler_has_left():
    message = request_of(100_000)
    first = Assembler(LIMIT)
    feed_all(first, cut(message, 30_000)[:3])
    part = first.detach()
    assert (part.size, part.body_bytes) == (60_000, 100_000)
    with pytest.raises(PeerFault):
        first.feed(SHORT)
    held = part.announce()
    assert begins_with(message, held)
    second = Assembler(LIMIT, part)
    assert second.kept_bytes == 100_000
    assert second.pending_bytes == 0
    assert feed_all(second, [SHORT, *cut(message, 30_000, start=60_000)]) == [REPLY, message]
    assert second.kept_bytes == 0
    assert second.came == 40_000
    with pytest.raises(PeerFault, match="nothing is here"):
        feed_all(second, cut(message, 30_000, start=60_000))


def test_a_part_belongs_to_one_message_and_one_beginning():
    message = request_of(100_000)
    first = Assembler(LIMIT)
    feed_all(first, cut(message, 30_000)[:3])
    part = first.detach()
    held = part.announce()
    for other in (
        request_of(100_000, seed=1),
        request_of(100_001),
        request_of(60_000),
        replace(message, seq=3),
        replace(REPLY, body=message.body),
    ):
        assert not begins_with(other, held)
    assert not begins_with(message, replace(held, size=0))
    part.buffer[59_999] ^= 1
    assert not begins_with(message, part.announce())
    with pytest.raises(PeerFault, match="nothing is here"):
        feed_all(Assembler(LIMIT, part), cut(replace(message, seq=3), 30_000, start=60_000))


def test_a_part_that_no_message_continues_is_left_again_until_another_long_body_begins():
    first = Assembler(LIMIT)
    feed_all(first, cut(request_of(100_000), 30_000)[:3])
    second = Assembler(LIMIT, first.detach())
    second.feed(SHORT)
    part = second.detach()
    assert part.size == 60_000
    third = Assembler(LIMIT, part)
    other = request_of(50_000, seed=1)
    assert feed_all(third, cut(other, 30_000)) == [other]
    assert third.detach() is None


# --- whose memory a body is ---------------------------------------------------------------------------------------


def receive(assembler, seed):
    (message,) = feed_all(assembler, chunks_of(request_of(CHUNK_BYTES, seed)))
    return message


def address_of(message):
    return np.frombuffer(message.body, np.uint8).__array_interface__["data"][0]


@pytest.mark.parametrize(
    "hold",
    [
        lambda message: message,
        lambda message: message.body,
        lambda message: message.body[5:10],
        lambda message: np.frombuffer(message.body, np.float32)[::2],
    ],
    ids=["message", "body", "slice", "array"],
)
def test_a_body_stays_what_it_was_while_anybody_looks_at_it(hold):
    assembler = Assembler(LIMIT)
    held = hold(receive(assembler, seed=1))
    for seed in (2, 3):
        assert receive(assembler, seed) == request_of(CHUNK_BYTES, seed)
    expected = hold(request_of(CHUNK_BYTES, seed=1))
    assert held == expected if isinstance(held, Request) else bytes(held) == bytes(expected)


@pytest.mark.parametrize("size", [CHUNK_BYTES - 1, CHUNK_BYTES + 1, LIMIT])
def test_the_buffer_serves_a_body_of_any_size(size):
    assembler = Assembler(LIMIT)
    where = address_of(receive(assembler, seed=1))
    (message,) = feed_all(assembler, chunks_of(request_of(size)))
    assert message == request_of(size)
    assert address_of(message) == where


# --- what is refused ----------------------------------------------------------------------------------------------

LONG = [bytes(chunk) for chunk in split(request_of(2 * CHUNK_BYTES + 9), 9)]
HEAD = LONG[0]


@pytest.mark.parametrize(
    "chunks",
    [
        [b""],
        [SHORT[: PREFIX_BYTES - 1]],
        [SHORT[:PREFIX_BYTES]],
        [SHORT[:-1]],
        [SHORT + b"\0"],
        [SHORT + SHORT],
        [HEAD[:PREFIX_BYTES]],
        [HEAD[:-1]],
        [HEAD + LONG[1][:1]],
        [b"".join(LONG)],
        [HEAD, b""],
        [HEAD, HEAD],
        [HEAD, SHORT],
        [HEAD, LONG[1][:-1]],
        [HEAD, LONG[1] + b"\0"],
        [HEAD, LONG[1], LONG[2], LONG[3][:-1]],
        [HEAD, LONG[1], LONG[2], LONG[3] + b"\0"],
        [*LONG, LONG[3]],
        [LONG[1]],
        [bytes(CHUNK_BYTES + 1)],
        [HEAD, bytes(CHUNK_BYTES + 1)],
    ],
    ids=range(21),
)
def test_any_other_cut_is_refused_and_final(chunks):
    assembler = Assembler(LIMIT)
    *good, bad = chunks
    for chunk in good:
        assembler.feed(chunk)
    with pytest.raises(PeerFault):
        assembler.feed(bad)
    with pytest.raises(PeerFault, match="broke the protocol"):
        assembler.feed(SHORT)


def test_a_body_beyond_the_limit_is_refused_before_it_is_allocated(monkeypatch):
    def refuse(assembler):
        raise AssertionError("allocated")

    monkeypatch.setattr(Assembler, "_take_buffer", refuse)
    with pytest.raises(PeerFault, match="limit"):
        Assembler(2 * CHUNK_BYTES + 8).feed(HEAD)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from Linux's /proc")
def test_an_announced_body_takes_no_memory_before_it_comes():
    """The buffer is mapped, not touched: a peer that announces much and sends little holds what it has sent."""
    size = 1 << 30
    head = encode(REQUEST)[0]
    announced = head[: PREFIX_BYTES - 8] + struct.pack("<Q", size) + head[PREFIX_BYTES:]
    assembler, before = Assembler(size), resident_bytes()
    assembler.feed(announced)
    for _ in range(8):
        assembler.feed(bytes(CHUNK_BYTES))
    assert assembler.pending_bytes == size
    assert resident_bytes() - before < 8 * CHUNK_BYTES + (8 << 20)


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
