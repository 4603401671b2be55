"""A link counts what a real node counts, with payloads and with tokens for them; what arrives is what was sent."""

from __future__ import annotations

import asyncio
import logging
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from p2pfl.config import NewMember, federation_text, load_config
from p2pfl.core import (
    CHUNK_BYTES,
    Ask,
    Busy,
    Done,
    Hello,
    LivesTold,
    Ready,
    Reply,
    Request,
    Resign,
    Resync,
    request_digest,
)
from p2pfl.crypto.identity import Identity, public_text
from p2pfl.crypto.session import FederationBinding
from p2pfl.errors import PeerFault
from p2pfl.net import Callbacks, Limits, Links, Membership, Watcher
from p2pfl.node import assembly
from p2pfl.wire import Assembler, split
from sim import BINDING_SECTIONS, MESSAGE_CODES, Framing, Kernel, LinkSpec, Network, Trace, lay, sealed_bytes

DIGEST = bytes(range(16))
LIMIT = 4 * CHUNK_BYTES
SIZES = (1, 100, CHUNK_BYTES - 200, CHUNK_BYTES - 30, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, LIMIT)


def hello(**changes):
    plain = {"incarnation": 1, "seq": 300, "pending": None, "request_digest": b"", "has_replicas": True}
    state = {"chain": DIGEST, "chain_before": DIGEST, "version": 70000, "closing": None, "level": 3}
    return Hello(**(plain | state | {"done": False, "have_yours": True} | changes))


def request(body, **changes):
    plain = {"incarnation": 2**40, "seq": 2, "version": 3, "echo": None, "weight": 0.5, "staleness": 1.0}
    return Request(**(plain | {"pace_s": 0.25, "terms": (3.0,), "audit": b"", "body": body} | changes))


def reply(body):
    plain = {"incarnation": 1, "seq": 2, "request_digest": DIGEST, "version": 4, "factor": 0.125, "pace_s": 2.0}
    return Reply(**plain, terms=(0.125,), body=body)


def messages(body):
    """Every type of message, some with fields of several lengths."""
    return [
        hello(),
        hello(pending=2**33, request_digest=DIGEST, closing=5),
        request(body),
        request(body, seq=2**20, version=200, echo=0, audit=DIGEST),
        reply(body),
        Ready(version=300, closing=None, level=2),
        Ready(version=2**50),
        Resync(incarnation=2**52),
        Ask(incarnation=1, seq=7, request_digest=DIGEST),
        Busy(incarnation=1, seq=9, retry_after_s=1.5),
        Done(version=12),
        LivesTold(lives=((1, 2, 3), (4, 5, 2**50))),
        Resign(process=2**50, other_ms=7),
    ]


def as_received(message):
    """With the digest that both ends of a request compute."""
    return replace(message, digest=request_digest(message)) if isinstance(message, Request) else message


def test_no_type_of_message_is_left_out():
    assert {type(message) for message in messages(b"x")} == set(MESSAGE_CODES)


@pytest.mark.parametrize("size", SIZES)
def test_a_message_arrives_as_through_the_chunks_of_a_session(size):
    body = np.random.default_rng(size).bytes(size)
    for message in messages(body):
        assembler = Assembler(LIMIT)
        (expected,) = [whole for chunk in split(message) for whole in assembler.feed(bytes(chunk))]
        _, arrived = Framing(LIMIT).carry(message)
        assert arrived == expected == as_received(message)


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_the_sealed_size_is_that_of_the_chunks_and_17_bytes_for_each(chunks):
    """On both sides of every size at which one more chunk begins."""
    for size in (*range(chunks * CHUNK_BYTES - 100, chunks * CHUNK_BYTES + 3), chunks * 1000):
        lengths = [len(chunk) for chunk in split(reply(bytes(size)))]
        assert sealed_bytes(sum(lengths) - size, size) == sum(length + 17 for length in lengths)


@pytest.mark.parametrize("size", [50, 2 * CHUNK_BYTES])
def test_a_body_that_its_sender_writes_over_arrives_as_it_was(size):
    body = bytearray(size)
    _, arrived = Framing(LIMIT).carry(reply(body))
    body[:] = b"\xff" * size
    assert bytes(arrived.body) == bytes(size)


def test_a_body_too_long_for_the_receiver_is_refused_as_in_a_real_node():
    with pytest.raises(PeerFault, match=r"65536, 100$"):
        Framing(100).carry(reply(bytes(101)))


def test_the_handshake_has_as_many_sections_as_that_of_a_real_node(tmp_path):
    keys = [public_text(Identity(bytes([index]) * 32).public) for index in (1, 2)]
    members = [NewMember(name=f"pi{index}", key=key, address=f"10.0.0.{index}:8470") for index, key in enumerate(keys)]
    file = tmp_path / "federation.toml"
    file.write_text(federation_text(name="pair", topology="ring", task="digits", members=members), encoding="utf-8")
    setup = SimpleNamespace(federation=load_config(file), learner=SimpleNamespace(shape_digest=b"any"))
    assert len(assembly.binding(setup).sections) == BINDING_SECTIONS


# -- against two real nodes -----------------------------------------------------------------------------------------


class Ear:
    """What a real node's network tells it."""

    def __init__(self, changed):
        self.changed = changed
        self.session = None
        self.heard = []
        self.closed = False

    def opened(self, peer, session):
        self.session = session
        self.changed.set()

    def took(self, peer, session, message):
        self.heard.append(message)
        self.changed.set()

    def ended(self, peer, session, reason):
        self.closed = True
        self.changed.set()


async def until(changed, condition):
    async with asyncio.timeout(20.0):
        while not condition():
            changed.clear()
            await changed.wait()


async def real_counts(sends):
    """(bytes, messages) that each of two nodes has counted; the lower one dials, leaves when all has arrived."""
    identities = [Identity(bytes([index + 1]) * 32) for index in range(2)]
    binding = FederationBinding(
        federation_id=bytes(32), sections=tuple((str(k), bytes(32)) for k in range(BINDING_SECTIONS))
    )
    changed = asyncio.Event()
    ears = [Ear(changed), Ear(changed)]

    def node(index, dial):
        ear = ears[index]
        return Links(
            Membership(
                identity=identities[index],
                own_index=index,
                members={identity.public: place for place, identity in enumerate(identities)},
                neighbors=frozenset({1 - index}),
                dial=dial,
                binding=binding,
            ),
            Callbacks(
                on_open=ear.opened,
                on_message=ear.took,
                on_close=ear.ended,
            ),
            Watcher(
                log=logging.getLogger("tests.sim"),
            ),
            listen="127.0.0.1:0",
            max_body_bytes=LIMIT,
            rng=Random(index),
            limits=Limits(close_s=5.0),
        )

    async with node(1, {}) as upper:
        lower = node(0, {1: f"127.0.0.1:{upper.port}"})
        async with lower:
            await until(changed, lambda: all(ear.session for ear in ears))
            # One after the other: of messages that wait, the later may take the place of the earlier.
            for sent, (source, message) in enumerate(sends, start=1):
                (lower, upper)[source].send(1 - source, ears[source].session, message)
                await until(changed, lambda sent=sent: len(ears[0].heard) + len(ears[1].heard) == sent)
        await until(changed, lambda: ears[1].closed)
    return [(links.counters.total.bytes_sent, links.counters.total.messages_sent) for links in (lower, upper)]


def simulated_counts(sends):
    kernel, heard = Kernel(), []
    network = Network(
        kernel=kernel,
        spec=LinkSpec(),
        links=lay({(0, 1): LIMIT}, LinkSpec(), (), 0),
        deliver=lambda _, event: heard.append(event),
        alive=lambda _: True,
        trace=Trace(),
    )
    network.open((0, 1))
    kernel.run(10**9)
    for source, message in sends:
        network.send(source, 1 - source, 1, message)
    kernel.run(10**12)
    network.count_goodbyes()
    assert len(heard) == 2 + len(sends)
    return [tuple(network.traffic_of(node)) for node in range(2)]


@pytest.mark.parametrize(("size", "within"), [(1000, 0.0), (2 * CHUNK_BYTES + 5, 0.01)])
async def test_two_real_nodes_count_the_same_bytes_and_messages(size, within):
    """Handshake, greetings, messages and goodbyes: from the first byte of a session to its last. Of long bodies a real
    receiver tells how much has arrived.
    """

    def sends(body):
        for_the_core = messages(body)
        return [
            *((0, message) for message in for_the_core),
            *((1, message) for message in for_the_core),
            (1, Done(version=1)),
        ]

    real = await real_counts(sends(np.random.default_rng(1).bytes(size)))
    simulated = simulated_counts(sends(bytes(size)))
    for (real_bytes, real_messages), (counted_bytes, counted_messages) in zip(real, simulated, strict=True):
        assert real_messages == counted_messages
        assert real_bytes == pytest.approx(counted_bytes, rel=within, abs=0)
