"""The links of a world, drawn once from the run's seed, counted in both directions; and a message on them: the result
of the real encoder and decoder, and the bytes that a real node would count for it as `bytes_sent`.

A real node counts the sealed bytes of its sessions; TCP, WebSocket frames and pings are not counted. Here nothing is
sealed; only the sizes are the same:

    message        frame + 17 for each chunk; frame = prefix 18 + header + body
    chunks         1 if the frame has at most CHUNK_BYTES, else 1 (prefix and header) + ceil(body / CHUNK_BYTES)
    session        dialer     m1 48 + m3 1168 + greeting 24 + 25 + 17
                   answerer   m2 1200 + greeting 24 + 25 + 17
                   lower end  its decision 25 + 17
                   both       their offer of versions and side channels, of which a simulated node has none
    goodbye        17 from each end, where the connection still carries it

A real node cuts a long body into smaller chunks on a slow line, and its receiver tells it how much has arrived: up to
1% more on a fast line, for bodies of some 100 kB. Here a body that was lost with its session is sent again as a whole;
a real one goes on.

A simulated session is dialed by its lower end, and dials do not cross. `messages_sent` counts messages alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from random import Random
from typing import NamedTuple, cast

from nacl.bindings import (
    crypto_secretstream_xchacha20poly1305_ABYTES,
    crypto_secretstream_xchacha20poly1305_HEADERBYTES,
)

from p2pfl.chance import stream
from p2pfl.config.charter import UNSHARED
from p2pfl.config.model import GossipConfig, TrainingConfig
from p2pfl.core.messages import CHUNK_BYTES, LEAST_VERSION, PROTOCOL_VERSION, Message
from p2pfl.crypto.session import M1_BYTES, FederationBinding, m2_bytes, m3_bytes
from p2pfl.wire import Offer
from p2pfl.wire.frame import PREFIX_BYTES, decode, decode_prefix, encode
from sim.kernel import NS
from sim.worlds.drawn import draw, quantized
from sim.worlds.model import LinkSpec, SlowNodes

Edge = tuple[int, int]

SEAL_BYTES: int = crypto_secretstream_xchacha20poly1305_ABYTES
NOTICE_BYTES = 25
BINDING_SECTIONS = 8 + len(fields(TrainingConfig)) + len(fields(GossipConfig)) - len(UNSHARED)
"""The number of sections of a federation, including the model shape, whose hashes the handshake binds."""

_BINDING = FederationBinding(
    federation_id=bytes(32), sections=tuple((str(section), bytes(32)) for section in range(BINDING_SECTIONS))
)
_GREETING_BYTES: int = crypto_secretstream_xchacha20poly1305_HEADERBYTES + NOTICE_BYTES + SEAL_BYTES
_OFFER_BYTES = len(encode(Offer(least=LEAST_VERSION, most=PROTOCOL_VERSION, channels=()))[0]) + SEAL_BYTES
LOWER_OPENING_BYTES = M1_BYTES + m3_bytes(_BINDING) + _GREETING_BYTES + NOTICE_BYTES + SEAL_BYTES + _OFFER_BYTES
"""The bytes that the lower end of a session sends before the first message."""
UPPER_OPENING_BYTES = m2_bytes(_BINDING) + _GREETING_BYTES + _OFFER_BYTES
GOODBYE_BYTES = SEAL_BYTES


class Traffic(NamedTuple):
    bytes_sent: int
    messages_sent: int


class Bandwidth:
    """Bytes per second as a fraction of integers, so that a transfer ends at the same nanosecond on every machine."""

    def __init__(self, bytes_per_s: float) -> None:
        numerator, denominator = float(bytes_per_s).as_integer_ratio()
        self._numerator, self._scale = numerator, denominator * NS

    def transfer_ns(self, size_bytes: int) -> int:
        """Return the duration of a transfer, rounded up."""
        return -(-size_bytes * self._scale // self._numerator)


@dataclass(slots=True, eq=False)
class Way:
    """One direction of a link. An earlier message is still being sent until `free_ns`."""

    link: Link
    source: int
    target: int
    free_ns: int = 0
    arrived_ns: int = 0
    """When the latest message arrives, where packets are lost: none overtakes another."""
    body: tuple[object, ...] = ()
    """The latest request or reply of this session, where packets are lost: a real node does not send it twice."""
    bytes_sent: int = 0
    messages_sent: int = 0


@dataclass(slots=True, eq=False)
class Link:
    """A link with its state. `session` is 0 while it is down; `latency_ns` includes what slow ends add."""

    edge: Edge
    latency_ns: int
    bandwidth: Bandwidth | None
    rng: Random
    framing: Framing
    session: int = 0
    ways: tuple[Way, Way] = field(init=False)
    """The direction from the lower end, and the one from the upper end."""

    def __post_init__(self) -> None:
        a, b = self.edge
        self.ways = (Way(self, a, b), Way(self, b, a))


def lay(body_bytes: Mapping[Edge, int], spec: LinkSpec, slow: Sequence[SlowNodes], seed: int) -> dict[Edge, Link]:
    """Build the links of these edges, each with its own random stream. A node in several groups has the sum of their
    delays.

    `body_bytes` is the largest body sent over each edge.
    """
    far_s, caps = slow_ends(slow)
    by_chance = (spec.jitter_s, spec.loss, spec.drop, spec.duplication)
    needs_chance = any(by_chance) or spec.latency_s.kind != "constant"
    shared = stream(seed, "links")  # nothing is ever drawn from it
    framings = {size: Framing(size) for size in set(body_bytes.values())}
    links = {}
    for edge, size in body_bytes.items():
        rng = stream(seed, "link", *edge) if needs_chance else shared
        limits = [limit for limit in (spec.bandwidth, *(caps.get(end) for end in edge)) if limit is not None]
        links[edge] = Link(
            edge=edge,
            latency_ns=whole_ns(draw(rng, spec.latency_s) + _far_s(edge, far_s)),
            bandwidth=Bandwidth(min(limits)) if limits else None,
            rng=rng,
            framing=framings[size],
        )
    return links


def slow_ends(slow: Sequence[SlowNodes]) -> tuple[dict[int, float], dict[int, float]]:
    """Return by node how much later messages to and from it arrive, in seconds, and the least of its bandwidths."""
    far_s: dict[int, float] = {}
    caps: dict[int, float] = {}
    for group in slow:
        for node in group.nodes:
            far_s[node] = far_s.get(node, 0.0) + group.far_s
            if group.bandwidth is not None:
                caps[node] = min(group.bandwidth, caps.get(node, group.bandwidth))
    return far_s, caps


def latency_s(edge: Edge, spec: LinkSpec, far_s: Mapping[int, float], seed: int) -> float:
    """Draw the latency of an edge without building its link."""
    constant = spec.latency_s.kind == "constant"
    drawn_s = spec.latency_s.low if constant else draw(stream(seed, "link", *edge), spec.latency_s)
    return drawn_s + _far_s(edge, far_s)


def _far_s(edge: Edge, far_s: Mapping[int, float]) -> float:
    return sum(far_s.get(end, 0.0) for end in edge)


def whole_ns(seconds: float) -> int:
    return round(quantized(seconds) * NS)


def sealed_bytes(head_bytes: int, body_bytes: int) -> int:
    """Return the size of one message in sealed chunks; `head_bytes` is prefix and header."""
    frame_bytes = head_bytes + body_bytes
    if frame_bytes <= CHUNK_BYTES:
        return frame_bytes + SEAL_BYTES
    return frame_bytes + SEAL_BYTES * (1 - -body_bytes // CHUNK_BYTES)


class Framing:
    """How messages are framed."""

    def __init__(self, max_body_bytes: int) -> None:
        self._limit_bytes = max_body_bytes

    def carry(self, message: Message) -> tuple[int, Message]:
        """Return the bytes counted for a message, and the message as its receiver decodes it."""
        head, body = encode(message)
        # Joining its parts, splitting them into chunks and joining again gives the same bytes; but their owner must not
        # write over them in transit.
        if type(body.obj) is not bytes:
            body = memoryview(bytes(body))
        prefix = decode_prefix(head[:PREFIX_BYTES], max_body_bytes=self._limit_bytes)
        return sealed_bytes(len(head), body.nbytes), cast("Message", decode(prefix, head[PREFIX_BYTES:], body))
