"""The digest of a trace is that of its bytes, the same in every process, and differs where a run differed."""

from __future__ import annotations

import hashlib
import struct

import pytest

from p2pfl.core import Message
from p2pfl.wire import BY_MESSAGE, Offer, PartHeld, Receipt, Side
from sim import BLOCK_ENTRIES, MESSAGE_CODES, Trace, TraceKind

ENTRIES = [(10**12 + k, 1 + k % 4, k % 17, -1 if k % 5 == 0 else k % 13, k * k) for k in range(2 * BLOCK_ENTRIES + 100)]


def traced(entries):
    trace = Trace()
    for entry in entries:
        trace.add(*entry)
    return trace


@pytest.mark.parametrize("count", [0, 1, BLOCK_ENTRIES - 1, BLOCK_ENTRIES, BLOCK_ENTRIES + 1, len(ENTRIES)])
def test_the_digest_is_that_of_the_packed_entries_however_they_fall_into_blocks(count):
    packed = b"".join(struct.pack("<qBiiq", *entry) for entry in ENTRIES[:count])
    expected = hashlib.blake2b(packed, digest_size=32, person=b"p2pfl-trace").hexdigest()
    trace = traced(ENTRIES[:count])
    assert trace.digest == expected
    assert trace.entries == count


def test_looking_at_the_digest_on_the_way_changes_nothing():
    watched = Trace()
    for entry in ENTRIES:
        watched.add(*entry)
        if watched.entries % 1000 == 0:
            assert watched.digest
    assert watched.digest == traced(ENTRIES).digest


def test_kinds_and_codes_keep_their_numbers():
    """A number stands for one thing for ever; new kinds get new ones."""
    assert {kind.name: kind.value for kind in TraceKind} == {
        "SESSION_OPENED": 1,
        "SESSION_CUT": 2,
        "SEPARATED": 3,
        "REJOINED": 4,
        "STARTED": 8,
        "CRASHED": 9,
        "FORGOT": 10,
        "ROUND_BEGUN": 11,
        "ROUND_TRAINED": 12,
        "ROUND_COMMITTED": 13,
        "FROZEN": 14,
        "REQUEST_APPLIED": 15,
        "REPLY_APPLIED": 16,
        "REFUSED": 17,
        "EDGE_RESET": 18,
        "BOOTSTRAPPED": 19,
        "ALARM": 20,
        "FINISHED": 21,
        "MIXED": 23,
        "LIFE_NOTED": 24,
        "EDGES_CHANGED": 25,
        "SENT": 32,
        "LOST": 64,
        "DUPLICATED": 96,
        "DELIVERED": 128,
    }
    others = (Offer, Side, PartHeld, Receipt)
    gossip = {message: kind.code for message, kind in BY_MESSAGE.items() if message not in others}
    assert gossip == MESSAGE_CODES
    assert set(MESSAGE_CODES) == set(Message.__args__)
    assert max(MESSAGE_CODES.values()) < 32
