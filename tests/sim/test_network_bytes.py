"""A link counts what a real node counts, with payloads and with tokens for them; what arrives is what was sent."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace
from nodes import Federation

from p2pfl.config import NewMember, federation_text, load_config
from p2pfl.core import Ask, Busy, Done, Hello, LivesTold, Ready, Reply, Request, Resign, Resync, request_digest
from p2pfl.crypto.identity import Identity, public_text
from p2pfl.crypto.session import FederationBinding
from p2pfl.errors import PeerFault
from p2pfl.limits import CHUNK_BYTES
from p2pfl.net import Limits
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


async def real_counts(sends):
    """(bytes, messages) that each of two nodes has counted; the lower one dials, leaves when all has arrived."""
    sections = tuple((str(k), bytes(32)) for k in range(BINDING_SECTIONS))
    binding = FederationBinding(federation_id=bytes(32), sections=sections)
    options = {"binding": binding, "max_body_bytes": LIMIT, "limits": Limits(close_s=5.0)}
    field = Federation()
    async with field.node(1, neighbors=frozenset({0}), **options) as upper:
        async with field.node(0, {1: upper.address()}, neighbors=frozenset({1}), **options) as lower:
            ends = lower, upper
            await lower.until(lambda: lower.open and upper.open)
            # One after the other: of messages that wait, the later may take the place of the earlier.
            for sent, (source, message) in enumerate(sends, start=1):
                ends[source].send(1 - source, message)
                await ends[1 - source].until(lambda sent=sent: sum(len(end.messages()) for end in ends) == sent)
        await upper.until(lambda: not upper.open)
    return [(end.links.counters.total.bytes_sent, end.links.counters.total.messages_sent) for end in ends]


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
