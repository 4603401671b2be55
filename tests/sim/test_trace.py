"""The digest of a trace is that of its bytes, the same in every process, and differs where a run differed."""

from __future__ import annotations

import hashlib
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from p2pfl.core.messages import Message
from p2pfl.wire import BY_MESSAGE, Offer, PartHeld, Receipt, Side
from sim.kernel import BLOCK_ENTRIES, MESSAGE_CODES, Trace, TraceKind

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


@pytest.mark.parametrize("place", range(5))
def test_every_part_of_an_entry_and_its_place_count(place):
    changed = list(ENTRIES[50])
    changed[place] += 1
    assert traced([*ENTRIES[:50], tuple(changed), *ENTRIES[51:100]]).digest != traced(ENTRIES[:100]).digest


def test_order_counts():
    assert traced([ENTRIES[1], ENTRIES[0]]).digest != traced(ENTRIES[:2]).digest


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


WORLD = """
from p2pfl.core.messages import Ready
from sim.kernel import Kernel
from sim.network import lay
from sim.network import Network
from sim.kernel import Trace
from sim.worlds.model import LinkSpec, SlowNodes, Spread
kernel, trace = Kernel(), Trace()
latency = Spread(kind="log-uniform", low=0.001, high=0.1)
spec = LinkSpec(latency_s=latency, jitter_s=0.05, drop=0.1, duplication=0.1, bandwidth=1e4)
edges = [(a, b) for a in range(6) for b in range(a + 1, 6)]
network = Network(kernel=kernel, spec=spec,
    links=lay(dict.fromkeys(edges, 0), spec, (SlowNodes(nodes=(2, 3), far_s=0.01),), 5),
    deliver=lambda i, e: None, alive=lambda i: True, trace=trace)
for edge in edges:
    network.open(edge)
for time_ms in range(1000):
    source, target = edges[time_ms % 15]
    kernel.at_ns(time_ms * 10**6,
        lambda s=source, t=target: network.send(s, t, network.links[s, t].session, Ready(version=3)))
kernel.at_ns(4 * 10**8, lambda: network.separate(((0, 1), (2,))))
kernel.at_ns(6 * 10**8, network.rejoin)
kernel.run(10**12)
print(trace.digest, trace.entries, network.traffic)
"""


@pytest.mark.long
def test_two_processes_with_different_hash_seeds_agree_on_the_digest_of_a_harsh_world():
    root = Path(__file__).parents[2]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", WORLD],
            env={"PYTHONHASHSEED": seed},
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "22")
    }
    assert len(outputs) == 1
    assert int(outputs.pop().split()[1]) > 1500
