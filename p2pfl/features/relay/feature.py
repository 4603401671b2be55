"""The relays of one node: it registers with all that its files list, and says which of them it has lost.

With `share_addresses`, neighbors that meet at a relay also tell each other their addresses (channel `direct`), so that
two machines behind one router soon need the relay no more. They are told while the session goes through a relay: when
it opens, when they have changed, and every hour. What a neighbor has told is forgotten after five minutes, and when the
session ends. It may lie, and so may a relay about the address that it sees. So a place is an address and a port, never
a name or a path; the first thing said there is the handshake, and each neighbor has an allowance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import Annotated, Any

from msgspec import Meta, Struct

from p2pfl.config.members import in_words
from p2pfl.config.model import NodeConfig
from p2pfl.console.wall_clock import seconds_now
from p2pfl.core.limits import TokenBucket
from p2pfl.errors import UserError
from p2pfl.features.lan.interfaces import all_interfaces, cover, hosts_of
from p2pfl.features.relay.link import RelayLink
from p2pfl.features.relay.tickets import Credentials, Sheets, read_token
from p2pfl.features.relay.transport import ByRelayTransport, through_relays
from p2pfl.net.address import Address, is_loopback, parse_address, unknown_hosts
from p2pfl.net.dial_paths import is_near, proxies_of
from p2pfl.net.extensions import ExtensionChannel, HandledChannel
from p2pfl.net.transport import MakeTransport
from p2pfl.node.assembly import Setup
from p2pfl.node.feature import Attached, Check, Feature, Inspected, NodeView
from p2pfl.reporting.alarms import LOST, AlarmText

SOON_S = 30 * 86_400
"""How long before a ticket expires there is an alarm."""
TICKET_LOOK_S = 60.0
NONE_LEFT = "no relay is left: "
PATIENCE_S = 15.0
"""How long a relay may be away before there is an alarm."""
MOST_PLACES = 8
"""The most places in one message."""
AN_HOUR = 16
"""The most new places of one neighbor that are tried in an hour."""
TRIED_S = 300.0
"""How long a place is tried after it was told."""
LOOK_S = 5.0
AGAIN_S = 3600.0
"""The time after which places are told again although they are the same: the other end has forgotten them."""
LEAST_S = 60.0
"""The shortest time between two messages of one session, after the first."""
HTTPS, LEAST_PORT = 443, 1024

ALARMS: Mapping[str, AlarmText] = {
    "relay-lost": AlarmText(
        means="This node is not registered at some relays; the text names them and says why.",
        does="Uses the other relays and direct addresses, and keeps trying. Edges that have no other way wait.",
        advice="Start the relay, or correct what the text says: address, ticket, token, or the relay's list.",
        ended_by="relay-back",
    ),
    "relay-ticket": AlarmText(
        means="The ticket that opens relays to this node expires within 30 days, or has expired; the text says when.",
        does="Registers with it as long as it holds; relays refuse it afterwards.",
        advice="Run `p2pfl member hand` where the admin key is: nodes that run get the new tickets.",
        ended_by="relay-ticket-renewed",
    ),
    "relay-slow": AlarmText(
        means="Exchanges through a relay took at least three times as long as they now take through another one.",
        does="Has moved the edge to the other relay, and tries the slow one again after an hour.",
        advice="Ask who runs that relay: its line or its --mbit may be too narrow, or it holds back what it passes on.",
    ),
    "relay-spoiled": AlarmText(
        means="A line through a relay carried what the other end did not seal, or nothing at all.",
        does="Has ended that session, blames no member, and prefers other ways to that member for five minutes.",
        advice="If this is frequent, find out who runs that relay, or what changes data on the way to it.",
    ),
}
Place = tuple[Annotated[bytes, Meta(min_length=4, max_length=16)], Annotated[int, Meta(ge=1, le=65535)]]
"""An IPv4 or IPv6 address, 4 or 16 bytes, and a port."""


class RelayFeature(Feature):
    name = "relay"
    alarms = ALARMS

    def check(self, setup: Setup) -> None:
        """Read token and tickets. Raises UserError if they cannot be read, or if this node has neither."""
        if setup.node.relays:
            Credentials(setup.federation, setup.node, setup.identity).require()

    def transport(self, setup: Setup, usual: MakeTransport) -> MakeTransport:
        return through_relays(setup.federation, setup.node, setup.identity, usual)

    def attach(self, node: NodeView) -> Attached | None:
        transport = node.network.transport
        return Relays(node, transport) if isinstance(transport, ByRelayTransport) else None


class Relays(Attached):
    """The relays of one running node."""

    def __init__(self, node: NodeView, transport: ByRelayTransport) -> None:
        self._node, self._relays = node, transport.relays
        shares = node.setup().node.network.share_addresses
        self.direct = DirectWays(node, transport) if shares else None
        self._missing = ""
        self._begun_at = node.clock()
        self._ticket = TicketAge(node)
        self._suspected: dict[int, tuple[float, str, str]] = {}
        """Who spoiled the line to a neighbor that is lost: when, the relay's URL, and what is to be said."""
        transport.listen_for_doubts(self._spoiled)
        transport.on_slow = self._slow

    def channels(self) -> tuple[HandledChannel, ...]:
        return () if self.direct is None else (HandledChannel(channel=CHANNEL, handler=self.direct),)

    def status(self) -> Mapping[str, Any]:
        rows = [
            {
                "relay": relay.url,
                "registered": relay.is_registered,
                "round_trip_ms": round(1000 * relay.round_trip_s, 1) if relay.round_trip_s < 60 else None,
                "why": relay.why,
                "lines": sorted(self._member(key)[1] for key in relay.members),
            }
            for relay in self._relays
        ]
        return {"relays": rows} | ({} if self.direct is None else {"addresses": self.direct.status()})

    async def run(self) -> None:
        if self.direct is not None:
            await self.direct.run()

    def look(self) -> None:
        """Raise or settle the alarms about relays that have been away for a while, and about the ticket."""
        self._ticket.look()
        now = self._node.clock()
        self._look_at_suspects(now)
        away = [relay for relay in self._relays if relay.away_s() > PATIENCE_S]
        missing = "; ".join(f"{relay.url}: {relay.why or relay.lost}" for relay in away)
        if len(away) == len(self._relays):
            missing = NONE_LEFT + missing
        if missing == self._missing or now - self._begun_at < PATIENCE_S:
            return
        is_news = not self._missing or (missing.startswith(NONE_LEFT) and not self._missing.startswith(NONE_LEFT))
        if not missing:
            self._node.feed.settle("relay-back", None)
            self._node.feed.tell("relay-back", None, "this node is registered at all its relays again")
        elif is_news or not self._node.feed.reword("relay-lost", None, missing):
            self._node.alarm("relay-lost", None, missing)
        self._missing = missing

    def _spoiled(self, relay: RelayLink, key: bytes, reason: str) -> None:
        """Raise an alarm. If the neighbor is lost, it or its cable may be the cause: that it is back soon, by another
        way, shows that it was the relay.
        """
        index, name = self._member(key)
        text = f"{relay.url}, on a line to {name}: {reason}"
        if index is not None and self._node.feed.stands(LOST, index):
            self._suspected[index] = self._node.clock(), relay.url, text
        else:
            self._node.alarm("relay-spoiled", None, text)

    def _slow(self, relay: RelayLink, key: bytes, text: str) -> None:
        self._node.alarm("relay-slow", None, f"{relay.url}, on the line to {self._member(key)[1]}: {text}")

    def _look_at_suspects(self, now: float) -> None:
        for peer, (since, url, text) in list(self._suspected.items()):
            session = self._node.network.session(peer)
            if session is not None and session[1].relay != url:
                self._node.alarm("relay-spoiled", None, text)
            if session is not None or now - since > PATIENCE_S:
                del self._suspected[peer]

    def _member(self, key: bytes) -> tuple[int | None, str]:
        members = enumerate(self._node.setup().federation.members)
        return next(((index, member.name) for index, member in members if member.key == key), (None, "a stranger"))


class TicketAge:
    """Says once that this node's ticket is about to expire, and that it has a new one."""

    def __init__(self, node: NodeView) -> None:
        setup = node.setup()
        self._node, self._key = node, setup.identity.public
        by_token = setup.node.relay_token is not None
        self._sheets = None if by_token else Sheets(setup.federation, setup.node.state_dir)
        self._looked_at = float("-inf")
        self._said: int | None = None
        """When the ticket expires about which there is an alarm."""

    def look(self) -> None:
        now = self._node.clock()
        if self._sheets is None or now - self._looked_at < TICKET_LOOK_S:
            return
        self._looked_at = now
        try:
            ticket = self._sheets.ticket(self._key)
        except UserError:  # said by whoever registers
            return
        until = None if ticket is None or ticket.until - seconds_now() > SOON_S else ticket.until
        if until is not None and until != self._said:
            text = f"it expires at {in_words(until)}, and by this machine's clock it is {in_words(seconds_now())}"
            self._node.alarm("relay-ticket", None, text)
        elif until is None and self._said is not None:
            self._node.feed.settle("relay-ticket-renewed", None)
            self._node.feed.tell("relay-ticket-renewed", None, "this node has a new ticket for relays")
        self._said = until


# -- addresses that neighbors tell ------------------------------------------------------------------------------------


class PlacesTold(Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """The places at which the sender may be reached, likeliest first."""

    places: Annotated[tuple[Place, ...], Meta(max_length=MOST_PLACES)]


CHANNEL = ExtensionChannel("direct", PlacesTold, most_bytes=256, per_s=1 / 60, at_once=4.0)


@dataclass(slots=True)
class TriedPlaces:
    """The places told by one neighbor, with the time until which each is tried. Times are in seconds."""

    tried_until: dict[str, float] = field(default_factory=dict)
    new: TokenBucket = field(default_factory=lambda: TokenBucket(AN_HOUR / 3600, tokens=AN_HOUR, burst=AN_HOUR))

    def take(self, addresses: Iterable[str], now: float) -> list[str]:
        """Return those that are tried from now on; what is being tried already is not tried longer."""
        fresh = [one for one in addresses if one not in self.tried_until and self.new.take(now) == 0.0]
        self.tried_until |= dict.fromkeys(fresh, now + TRIED_S)
        return fresh

    def expire(self, now: float) -> list[str]:
        """Return those that have been tried long enough, and forget them."""
        over = [address for address, until in self.tried_until.items() if until <= now]
        for address in over:
            del self.tried_until[address]
        return over


class DirectWays:
    """A node's part in the channel: it tells its own places, and tries those of its neighbors. Times are on the node's
    clock.
    """

    def __init__(self, node: NodeView, transport: ByRelayTransport) -> None:
        self._node, self._transport = node, transport
        self._own: tuple[Place, ...] = ()
        self._tried: dict[int, TriedPlaces] = {}
        self._told: dict[int, tuple[tuple[Place, ...], float]] = {}
        """What each neighbor whose session has the channel was told last, and when."""

    def status(self) -> Mapping[str, Any]:
        name_of = self._node.status.name_of
        tried = {name_of(peer): list(one.tried_until) for peer, one in self._tried.items() if one.tried_until}
        return {"told": addresses_in(PlacesTold(places=self._own)), "tried": tried}

    async def run(self) -> None:
        while True:
            self._own = await asyncio.to_thread(self._places)
            self.look_around()
            await asyncio.sleep(LOOK_S)

    def look_around(self) -> None:
        """Tell the places of this node where that is due, and stop trying what has been tried long enough."""
        now = self._node.clock()
        for peer, (before, at) in self._told.items():
            due = now - at >= (AGAIN_S if self._own == before else LEAST_S)
            if self._own and due and self._is_relayed(peer):
                self._node.say(peer, CHANNEL, PlacesTold(places=self._own))
                self._told[peer] = (self._own, now)
        for peer, tried in self._tried.items():
            if over := tried.expire(now):
                self._node.network.hint(peer, (), over)

    def opened(self, peer: int) -> None:
        self._told[peer] = ((), float("-inf"))

    def hear(self, peer: int, message: PlacesTold) -> None:
        if self._is_relayed(peer):
            tried = self._tried.setdefault(peer, TriedPlaces())
            if fresh := tried.take(addresses_in(message), self._node.clock()):
                self._node.network.hint(peer, fresh)

    def closed(self, peer: int) -> None:
        """Forget the places of a neighbor, but for the one at which it was found."""
        self._told.pop(peer, None)
        if peer in self._tried:
            self._node.network.hint(peer, (), self._tried[peer].expire(float("inf")))

    def _is_relayed(self, peer: int) -> bool:
        session = self._node.network.session(peer)
        return session is not None and session[1].relay is not None

    def _places(self) -> tuple[Place, ...]:
        """Return the places at which this node may be reached. Called in a thread."""
        node, port = self._node.setup().node, self._node.network.port
        host = parse_address(node.listen, "listen").host
        relays = self._transport.relays
        near = own_hosts(host, node.interfaces, (relay.own_address for relay in relays))
        seen = [relay.seen for relay in relays if relay.seen and answers(relay.seen, host)]
        return places_of([(one, port) for one in near] + [(one, node.forwarded_port or port) for one in seen])


def own_hosts(listen: str, named: Sequence[str], outgoing: Iterable[str | None]) -> list[str]:
    """Return the addresses of this machine at which a node that listens at `listen` answers.

    Without python-zeroconf, or if the system does not say, they are those from which it has dialed its relays.
    """
    try:
        covered = cover(all_interfaces(), listen, named)
    except (ModuleNotFoundError, OSError):
        return [one for one in outgoing if one is not None and answers(one, listen)]
    return [str(address.ip) for interface in covered for address in interface.announced]


def answers(host: str, listen: str) -> bool:
    """Return True if a node that listens at `listen` may be reached at `host`, directly or through a router."""
    try:
        version = ip_address(host).version
        return any(ip_address(one).version == version and not is_loopback(one) for one in hosts_of(listen))
    except ValueError:
        return False


def is_plausible(host: str) -> bool:
    """Return True if a node may be at that address: one of a private network or of the internet, and of one machine.

    Link-local addresses need a scope, which the other end does not have; at some of them clouds answer for secrets.
    """
    try:
        ip = ip_address(host)
    except ValueError:
        return False
    if isinstance(ip, IPv6Address):
        # What IPv6 addresses contain others is reserved, but for these two kinds.
        embedded = ip.sixtofour is not None or ip.teredo is not None
        if embedded or ip.is_site_local or ip.scope_id is not None:
            return False
    elif ip.packed[0] == 0:
        return False
    return not (ip.is_loopback or ip.is_multicast or ip.is_unspecified or ip.is_link_local or ip.is_reserved)


def places_of(addresses: Iterable[tuple[str, int]]) -> tuple[Place, ...]:
    """Return the places to tell: the plausible ones, each once."""
    plausible = [(ip_address(host).packed, port) for host, port in addresses if is_plausible(host)]
    return tuple(dict.fromkeys(plausible))[:MOST_PLACES]


def addresses_in(told: PlacesTold) -> list[str]:
    """Return the addresses that may be dialed, as `host:port`."""
    addresses = []
    for packed, port in told.places:
        host = str(ip_address(packed)) if len(packed) in (4, 16) else ""
        if is_plausible(host) and (port == HTTPS or port >= LEAST_PORT):
            addresses.append(str(Address(host, port)))
    return list(dict.fromkeys(addresses))


# -- before there are nodes -------------------------------------------------------------------------------------------


class RelayCheck(Check):
    """Whether the nodes here have what opens their relays, and who tells its addresses, and where that is in vain."""

    def of_files(self, inspected: Inspected) -> None:
        sharing = [node for node in inspected.here.values() if node.network.share_addresses]
        for node in inspected.here.values():
            key = f"{node.name}: share_addresses in [network] is of no use"
            if node in sharing and not node.relays:
                inspected.warnings.append(f"{key} without relays: addresses are told through them only")
            elif node in sharing and is_loopback(parse_address(node.listen, "listen").host):
                inspected.warnings.append(f"{key}: it listens at {node.listen}, on its own machine only")
        if sharing:
            names = ", ".join(node.name for node in sharing[:3]) + (" ..." if len(sharing) > 3 else "")
            inspected.brief["addresses"] = f"told by {names} to neighbors at a relay that tell theirs"
        for index, node in inspected.here.items():
            try:
                if node.relays and node.relay_token is not None:
                    read_token(node.relay_token)
                elif node.relays:
                    self._look_at_ticket(inspected, index, node)
            except UserError as error:
                inspected.mistakes.append(error)
        inspected.warnings += _unknown(inspected.federation.relays, list(inspected.here.values()))

    def _look_at_ticket(self, inspected: Inspected, index: int, node: NodeConfig) -> None:
        federation, now = inspected.federation, seconds_now()
        ticket = Sheets(federation, node.state_dir).ticket(federation.members[index].key)
        how = "`p2pfl member hand`" if federation.admin else "relay_token in its node.toml"
        if ticket is None:
            inspected.warnings.append(f"{node.name} has nothing that opens the relays in [network]: {how}")
        elif ticket.until - now < SOON_S:
            is_over = ticket.until < now
            clock = f", and by this machine's clock it is {in_words(now)}" if is_over else ""
            verb = "expired" if is_over else "expires"
            inspected.warnings.append(f"the ticket of {node.name} {verb} at {in_words(ticket.until)}{clock}: {how}")


def _unknown(listed: tuple[str, ...], here: list[NodeConfig]) -> list[str]:
    """Return a warning for each relay whose name is unknown; none where a proxy may know it."""
    if any(node.network.proxy not in (None, "none") for node in here):
        return []
    proxies = proxies_of(None, None)
    urls = dict.fromkeys(url.partition("#")[0] for url in [*listed, *(url for node in here for url in node.relays)])
    asked = {url: parse_address(url, "network.relays") for url in urls}
    asked = {url: one for url, one in asked.items() if not is_near(one.host) and proxies.of(one) is None}
    unknown = unknown_hosts(one.host for one in asked.values())
    return [
        f"the name in the URL of the relay {url} is unknown here: correct it, or the DNS of this machine"
        for url, one in asked.items()
        if one.host in unknown
    ]
