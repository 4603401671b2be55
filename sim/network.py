"""Simulated links: sessions that open, die and come back; messages that are late, dropped, duplicated and reordered.

A session's messages end with it, as in TCP; within a session a link may behave worse than TCP (`drop`, `duplication`,
`jitter_s`), because the protocol promises to tolerate that. Where packets are lost (`loss`), TCP sends them again after
a time that doubles, and what follows waits (RFC 6298, section 5); a session that hears nothing for too long ends. Each
direction of a link sends one message at a time: the next one starts when the previous one has left.

The links of a world are drawn once from the run's seed, and counted in both directions. A message on them is the result
of the real encoder and decoder, and its bytes are those that a real node would count as `bytes_sent` (`Framing`).
A real node counts the sealed bytes of its sessions; TCP, WebSocket frames and pings are not counted. Here nothing is
sealed; only the sizes are the same:

    message        frame + 17 for each chunk; frame = prefix 18 + header + body
    chunks         1 if the frame has at most CHUNK_BYTES, else 1 (prefix and header) + ceil(body / CHUNK_BYTES)
    session        dialer     m1 48 + m3 1168 + greeting 24 + 25 + 17
                   answerer   m2 1200 + greeting 24 + 25 + 17
                   lower end  its decision 25 + 17
                   both       their offer of versions and extension channels, of which a simulated node has none
    goodbye        17 from each end, where the connection still carries it

A real node cuts a long body into smaller chunks on a slow line, and its receiver tells it how much has arrived: up to
1% more on a fast line, for bodies of some 100 kB. Here a body that was lost with its session is sent again as a whole;
a real one goes on.

A simulated session is dialed by its lower end, and dials do not cross. `messages_sent` counts messages alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import NamedTuple, TypeVar, cast

from nacl.bindings import (
    crypto_secretstream_xchacha20poly1305_ABYTES,
    crypto_secretstream_xchacha20poly1305_HEADERBYTES,
)

from p2pfl.chance import stream
from p2pfl.config.charter import counting
from p2pfl.config.model import GossipConfig, TrainingConfig
from p2pfl.core.events import Event, MessageReceived, SessionClosed, SessionOpened
from p2pfl.core.messages import LEAST_VERSION, PROTOCOL_VERSION, Message, Reply, Request
from p2pfl.crypto.session import M1_BYTES, FederationBinding, m2_bytes, m3_bytes
from p2pfl.limits import CHUNK_BYTES
from p2pfl.wire import PREFIX_BYTES, Offer, Side, decode, decode_prefix, encode
from sim.kernel import MESSAGE_CODES, NS, Kernel, Trace, TraceKind, message_number
from sim.worlds.model import LinkSpec, SlowNodes
from sim.worlds.settling import draw, quantized

Edge = tuple[int, int]

SEAL_BYTES: int = crypto_secretstream_xchacha20poly1305_ABYTES
NOTICE_BYTES = 25
BINDING_SECTIONS = 9 + len(counting(TrainingConfig(), named=True)) + len(counting(GossipConfig()))
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
    said_ns: int = 0
    """When the latest message of a feature arrives: its channels rely on TCP."""
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


T = TypeVar("T", bound=Message | Side)


class Framing:
    """How messages are framed."""

    def __init__(self, max_body_bytes: int) -> None:
        self._limit_bytes = max_body_bytes

    def carry(self, message: T) -> tuple[int, T]:
        """Return the bytes counted for a message, and the message as its receiver decodes it."""
        head, body = encode(message)
        # Joining its parts, splitting them into chunks and joining again gives the same bytes; but their owner must not
        # write over them in transit.
        if type(body.obj) is not bytes:
            body = memoryview(bytes(body))
        prefix = decode_prefix(head[:PREFIX_BYTES], max_body_bytes=self._limit_bytes)
        return sealed_bytes(len(head), body.nbytes), cast("T", decode(prefix, head[PREFIX_BYTES:], body))


# An enumeration's members are slow to add to.
SENT, LOST, DUPLICATED, DELIVERED = (
    int(k) for k in (TraceKind.SENT, TraceKind.LOST, TraceKind.DUPLICATED, TraceKind.DELIVERED)
)
SIDE = 12
"""The code of a feature's message, as on the wire."""
ELSEWHERE = -1
RESEND_NS = NS // 5
"""How long TCP waits before it sends a lost packet again for the first time; the least that Linux waits."""
MOST_RESENDS = 8
"""A session ends when a packet was lost this many times in a row, after 51 s: as long as a real one is patient."""

Groups = tuple[tuple[int, ...], ...]


class Separations:
    """Groups of nodes that cannot reach each other for a time. The nodes in no group form one more."""

    def __init__(self) -> None:
        self.standing: list[tuple[Groups, dict[int, int]]] = []

    def add(self, groups: Groups) -> None:
        self.standing.append((groups, {node: place for place, group in enumerate(groups) for node in group}))

    def end(self, groups: Groups | None) -> None:
        """End the oldest separation with these groups; None ends all."""
        ended = next((partition for partition in self.standing if partition[0] == groups), None)
        self.standing = [] if groups is None else [partition for partition in self.standing if partition is not ended]

    def divide(self, edge: Edge) -> bool:
        """Return True if a separation divides the two ends."""
        a, b = edge
        return any(place.get(a, ELSEWHERE) != place.get(b, ELSEWHERE) for _, place in self.standing)


class Network:
    """All links of a world; `deliver(index, event)` hands an event to a host, `alive(index)` says whether it runs, and
    `accepts(index, peer)` whether it accepts that peer as a neighbor.

    `links` has every edge, in the order of the graph's: see `lay`.
    """

    def __init__(
        self,
        *,
        kernel: Kernel,
        spec: LinkSpec,
        links: Mapping[Edge, Link],
        deliver: Callable[[int, Event], None],
        alive: Callable[[int], bool],
        trace: Trace,
        accepts: Callable[[int, int], bool] = lambda _index, _peer: True,
    ) -> None:
        self.kernel = kernel
        self.spec = spec
        self.deliver = deliver
        self.alive = alive
        self.accepts = accepts
        self.trace = trace
        self.links = links
        self.hear: Callable[[int, int, Side], None]
        """Takes a feature's message: its receiver and sender."""
        self.sessions = 0
        self.quiet = False
        """True if loss, duplication and reordering are over."""
        self._jitter_ns = whole_ns(spec.jitter_s)
        self._redial_ns = whole_ns(spec.redial_s)
        self._drops = spec.drop > 0 or spec.duplication > 0
        self._is_tcp = spec.loss > 0 and not spec.drop
        self._separations = Separations()
        self._ways: dict[int, dict[int, Way]] = {}
        for link in self.links.values():
            for way in link.ways:
                self._ways.setdefault(way.source, {})[way.target] = way

    # -- sessions -----------------------------------------------------------------------------------------------------

    def open(self, edge: Edge) -> None:
        """Open a session if both ends run; the two ends notice at slightly different times."""
        link = self.links[edge]
        if link.session or self._separations.divide(edge) or not all(self.alive(end) for end in edge):
            return
        if not (self.accepts(*edge) and self.accepts(*reversed(edge))):
            return
        self.sessions += 1
        link.session = self.sessions
        self._note(TraceKind.SESSION_OPENED, *edge, link.session)
        for way, opening_bytes in zip(link.ways, (LOWER_OPENING_BYTES, UPPER_OPENING_BYTES), strict=True):
            way.free_ns = way.arrived_ns = 0
            way.body = ()
            way.bytes_sent += opening_bytes
        for way, back in zip(link.ways, reversed(link.ways), strict=True):
            # Each end notices as if the other had sent it.
            event = SessionOpened(peer=way.target, session=link.session)
            arrival = partial(self._arrive, link.session, link, way.source, event)
            back.said_ns = self.kernel.now_ns + self._delay_ns(link)
            self.kernel.at_ns(back.said_ns, arrival)

    def cut(self, edge: Edge, *, redial: bool = True) -> None:
        """End the session; messages in transit are lost, and each end notices in its own time."""
        link = self.links[edge]
        session, link.session = link.session, 0
        if session:
            self._note(TraceKind.SESSION_CUT, *edge, session)
            for way in link.ways:
                event = SessionClosed(peer=way.target, session=session)
                noticed_ns = self.kernel.now_ns + self._delay_ns(link)
                self.kernel.at_ns(noticed_ns, partial(self.deliver, way.source, event))
        if redial:
            self._redial(edge)

    def close(self, source: int, target: int, session: int) -> None:
        """End a session at a core's request: both ends say goodbye, and the link is retried later."""
        link = self._ways[source][target].link
        if link.session == session:
            self._say_goodbye(link)
            self.cut(link.edge)

    def count_goodbyes(self) -> None:
        """Count the goodbyes that real nodes send when all have finished; sessions stay open here."""
        for link in self.links.values():
            if link.session:
                self._say_goodbye(link)

    @staticmethod
    def _say_goodbye(link: Link) -> None:
        for way in link.ways:
            way.bytes_sent += GOODBYE_BYTES

    def _redial(self, edge: Edge) -> None:
        self.kernel.at_ns(self.kernel.now_ns + self._redial_ns, partial(self.open, edge))

    # -- partitions ---------------------------------------------------------------------------------------------------

    def separate(self, groups: Groups) -> None:
        """Cut every session between nodes in different groups, and let none open until `rejoin`.

        Separations accumulate: a link works while none of them divides it.
        """
        self._separations.add(groups)
        self._note(TraceKind.SEPARATED, 0, 0, len(self._separations.standing))
        for link in self.links.values():
            if link.session and self._separations.divide(link.edge):
                self.cut(link.edge, redial=False)

    def rejoin(self, groups: Groups | None = None) -> None:
        """End that separation, or all of them; the links that it divided are retried, as after any failure."""
        divided = [edge for edge in self.links if self._separations.divide(edge)]
        self._separations.end(groups)
        self._note(TraceKind.REJOINED, 0, 0, len(self._separations.standing))
        for edge in divided:
            self._redial(edge)

    # -- messages -----------------------------------------------------------------------------------------------------

    def send(self, source: int, target: int, session: int, message: Message) -> None:
        """Send a message through the real encoder and decoder; it arrives late, twice or never."""
        way = self._ways[source][target]
        link = way.link
        if link.session != session or (self._is_tcp and _is_repeated(message, way)):
            return
        size, arrived = link.framing.carry(message)
        left_ns = self._leave(way, size, MESSAGE_CODES[type(message)])
        copies = self._copies(way, message) if self._drops and not self.quiet else 1
        if copies:
            event = MessageReceived(peer=source, session=session, message=arrived)
            arrival = partial(self._arrive, session, link, target, event)
            for _ in range(copies):
                arrives_ns = left_ns + self._delay_ns(link)
                if self.spec.loss:
                    arrives_ns = way.arrived_ns = max(arrives_ns, way.arrived_ns)
                self.kernel.at_ns(arrives_ns, arrival)

    def say(self, source: int, target: int, session: int, message: Side) -> bool:
        """Send a feature's message, which arrives once and in order; return False if that session is over."""
        way = self._ways[source][target]
        if way.link.session != session:
            return False
        size, arrived = way.link.framing.carry(message)
        way.said_ns = max(way.said_ns, self._leave(way, size, SIDE) + self._delay_ns(way.link))
        self.kernel.at_ns(way.said_ns, partial(self._hear, way, session, arrived))
        return True

    def _hear(self, way: Way, session: int, message: Side) -> None:
        if way.link.session == session:
            self._note(DELIVERED + SIDE, way.source, way.target, len(message.body))
            self.hear(way.target, way.source, message)

    def _leave(self, way: Way, size: int, code: int) -> int:
        """Count a message, and return when it leaves."""
        link, left_ns = way.link, self.kernel.now_ns
        way.bytes_sent += size
        way.messages_sent += 1
        self.trace.add(left_ns, SENT + code, way.source, way.target, size)
        if link.bandwidth is not None:
            left_ns = way.free_ns = max(left_ns, way.free_ns) + link.bandwidth.transfer_ns(size)
        return self._resend(way, link.session, left_ns) if self.spec.loss and not self.quiet else left_ns

    def _resend(self, way: Way, session: int, left_ns: int) -> int:
        """Return when the packet leaves that is not lost. After too many losses in a row the session ends first."""
        draw, wait_ns = way.link.rng.random, RESEND_NS
        for _ in range(MOST_RESENDS):
            if draw() >= self.spec.loss:
                return left_ns
            left_ns += wait_ns
            wait_ns *= 2
        self.kernel.at_ns(left_ns, partial(self._give_up, way.link, session))
        return left_ns + 1

    def _give_up(self, link: Link, session: int) -> None:
        if link.session == session:
            self.cut(link.edge)

    def _copies(self, way: Way, message: Message) -> int:
        draw, spec, copies = way.link.rng.random, self.spec, 1
        if spec.drop and draw() < spec.drop:
            copies = 0
            self._note(LOST + MESSAGE_CODES[type(message)], way.source, way.target, message_number(message))
        if spec.duplication and draw() < spec.duplication:
            copies += 1
            self._note(DUPLICATED + MESSAGE_CODES[type(message)], way.source, way.target, message_number(message))
        return copies

    def _arrive(self, session: int, link: Link, end: int, event: SessionOpened | MessageReceived) -> None:
        if link.session != session:
            return
        if type(event) is MessageReceived:
            kind = DELIVERED + MESSAGE_CODES[type(event.message)]
            self.trace.add(self.kernel.now_ns, kind, event.peer, end, message_number(event.message))
        self.deliver(end, event)

    def _delay_ns(self, link: Link) -> int:
        if not self._jitter_ns or self.quiet:
            return link.latency_ns
        return link.latency_ns + int(self._jitter_ns * link.rng.random())

    def _note(self, kind: int, a: int, b: int, n: int) -> None:
        self.trace.add(self.kernel.now_ns, kind, a, b, n)

    # -- figures ------------------------------------------------------------------------------------------------------

    def links_of(self, node: int) -> tuple[Edge, ...]:
        """Return this node's edges, in the order of the graph's."""
        return tuple(way.link.edge for way in self._ways.get(node, {}).values())

    def ways_of(self, node: int) -> list[Way]:
        """Return the directions from this node to its neighbors, ordered by neighbor."""
        return [way for _, way in sorted(self._ways.get(node, {}).items())]

    def traffic_of(self, node: int) -> Traffic:
        """Return the traffic that this node has sent, over all its links and all its lifetimes."""
        return _sum(self._ways.get(node, {}).values())

    @property
    def traffic(self) -> Traffic:
        return _sum(way for link in self.links.values() for way in link.ways)


def _is_repeated(message: Message, way: Way) -> bool:
    """Return True for a body that this session carries already: `p2pfl.net.outbox` sends it once, as TCP loses none."""
    body: tuple[object, ...]
    match message:
        case Request(incarnation=incarnation, seq=seq, digest=digest):
            body = (Request, incarnation, seq, digest)
        case Reply(incarnation=incarnation, seq=seq, request_digest=digest):
            body = (Reply, incarnation, seq, digest)
        case _:
            return False
    way.body, before = body, way.body
    return body == before


def _sum(ways: Iterable[Way]) -> Traffic:
    counts = [(way.bytes_sent, way.messages_sent) for way in ways]
    return Traffic(sum(size for size, _ in counts), sum(messages for _, messages in counts))
