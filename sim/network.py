"""Simulated links: sessions that open, die and come back; messages that are late, dropped, duplicated and reordered.

A session's messages end with it, as in TCP; within a session a link may behave worse than TCP (`drop`, `duplication`,
`jitter_s`), because the protocol promises to tolerate that. Where packets are lost (`loss`), TCP sends them again after
a time that doubles, and what follows waits (RFC 6298, section 5); a session that hears nothing for too long ends. Each
direction of a link sends one message at a time: the next one starts when the previous one has left. The
bytes counted are the same as in a real node (`links.Framing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from p2pfl.core.events import Event, MessageReceived, SessionClosed, SessionOpened
from p2pfl.core.messages import Message, Reply, Request
from sim.kernel import NS, Kernel
from sim.links import GOODBYE_BYTES, LOWER_OPENING_BYTES, UPPER_OPENING_BYTES, Edge, Link, Traffic, Way, whole_ns
from sim.trace import MESSAGE_CODES, Trace, TraceKind, message_number
from sim.worlds.model import LinkSpec

# An enumeration's members are slow to add to.
SENT, LOST, DUPLICATED, DELIVERED = (
    int(k) for k in (TraceKind.SENT, TraceKind.LOST, TraceKind.DUPLICATED, TraceKind.DELIVERED)
)
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
        ended = next((one for one in self.standing if one[0] == groups), None)
        self.standing = [] if groups is None else [one for one in self.standing if one is not ended]

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
        accepts: Callable[[int, int], bool] = lambda _index, _peer: True,
        trace: Trace | None = None,
    ) -> None:
        self.kernel = kernel
        self.spec = spec
        self.deliver = deliver
        self.alive = alive
        self.accepts = accepts
        self.trace = trace
        self.links = links
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
        for way in link.ways:
            # Each end notices as if the other had sent it.
            event = SessionOpened(peer=way.target, session=link.session)
            arrival = partial(self._arrive, link.session, link, way.source, event)
            self.kernel.at_ns(self.kernel.now_ns + self._delay_ns(link), arrival)

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
        way.bytes_sent += size
        way.messages_sent += 1
        left_ns = self.kernel.now_ns
        if self.trace is not None:
            self.trace.add(left_ns, SENT + MESSAGE_CODES[type(message)], source, target, size)
        if link.bandwidth is not None:
            left_ns = way.free_ns = max(left_ns, way.free_ns) + link.bandwidth.transfer_ns(size)
        if self.spec.loss and not self.quiet:
            left_ns = self._resend(way, session, left_ns)
        copies = self._copies(way, message) if self._drops and not self.quiet else 1
        if copies:
            event = MessageReceived(peer=source, session=session, message=arrived)
            arrival = partial(self._arrive, session, link, target, event)
            for _ in range(copies):
                arrives_ns = left_ns + self._delay_ns(link)
                if self.spec.loss:
                    arrives_ns = way.arrived_ns = max(arrives_ns, way.arrived_ns)
                self.kernel.at_ns(arrives_ns, arrival)

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
        if self.trace is not None and type(event) is MessageReceived:
            kind = DELIVERED + MESSAGE_CODES[type(event.message)]
            self.trace.add(self.kernel.now_ns, kind, event.peer, end, message_number(event.message))
        self.deliver(end, event)

    def _delay_ns(self, link: Link) -> int:
        if not self._jitter_ns or self.quiet:
            return link.latency_ns
        return link.latency_ns + int(self._jitter_ns * link.rng.random())

    def _note(self, kind: int, a: int, b: int, n: int) -> None:
        if self.trace is not None:
            self.trace.add(self.kernel.now_ns, kind, a, b, n)

    # -- figures ------------------------------------------------------------------------------------------------------

    def links_of(self, node: int) -> tuple[Edge, ...]:
        """Return this node's edges, in the order of the graph's."""
        return tuple(way.link.edge for way in self._ways.get(node, {}).values())

    def ways_of(self, node: int) -> list[Way]:
        """Return the directions from this node to its neighbors, ordered by neighbor."""
        return [way for _, way in sorted(self._ways.get(node, {}).items())]

    def traffic_of(self, node: int) -> Traffic:
        """Return the traffic that this node has sent, over all its links and all its lives."""
        return _sum(self._ways.get(node, {}).values())

    @property
    def sent(self) -> dict[Edge, int]:
        """Return bytes by (sender, receiver)."""
        return {(way.source, way.target): way.bytes_sent for link in self.links.values() for way in link.ways}

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
