"""A node's part in the channel `direct`: it tells its own places, and tries those of its neighbors.

They are told while the session goes through a relay: when it opens, when they have changed, and every hour. What a
neighbor has told is forgotten after five minutes, and when the session ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from typing import Any

from p2pfl.features.direct.places import CHANNEL, Place, PlacesTold, TriedPlaces, addresses_in, places_of
from p2pfl.features.lan.interfaces import all_interfaces, cover, hosts_of
from p2pfl.features.relay.by_relay import ByRelayTransport
from p2pfl.net.address import is_loopback, parse_address
from p2pfl.net.side import Feeding
from p2pfl.node.feature import Attached, Feature, NodeView

LOOK_S = 5.0
AGAIN_S = 3600.0
"""The time after which places are told again although they are the same: the other end has forgotten them."""
LEAST_S = 60.0
"""The shortest time between two messages of one session, after the first."""


class DirectFeature(Feature):
    name = "direct"
    needs = ("relay",)

    def attach(self, node: NodeView) -> Attached | None:
        transport = node.network.transport
        if not node.setup().node.network.share_addresses or not isinstance(transport, ByRelayTransport):
            return None
        return DirectWays(node, transport)


class PlacesTalk:
    """The handler of the channel."""

    def __init__(self, ways: DirectWays) -> None:
        self._ways = ways

    def opened(self, peer: int) -> None:
        self._ways.told[peer] = ((), float("-inf"))

    def closed(self, peer: int) -> None:
        self._ways.told.pop(peer, None)
        self._ways.forget(peer)

    def hear(self, peer: int, message: PlacesTold) -> None:
        self._ways.hear(peer, message)


class DirectWays(Attached):
    """The direct ways of one running node. Times are on its clock."""

    def __init__(self, node: NodeView, transport: ByRelayTransport) -> None:
        self._node, self._transport = node, transport
        self._own: tuple[Place, ...] = ()
        self._tried: dict[int, TriedPlaces] = {}
        self.told: dict[int, tuple[tuple[Place, ...], float]] = {}
        """What each neighbor whose session has the channel was told last, and when."""

    def feedings(self) -> tuple[Feeding, ...]:
        return (Feeding(channel=CHANNEL, handler=PlacesTalk(self)),)

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
        for peer, (before, at) in self.told.items():
            due = now - at >= (AGAIN_S if self._own == before else LEAST_S)
            if self._own and due and self._is_relayed(peer):
                self._node.say(peer, CHANNEL, PlacesTold(places=self._own))
                self.told[peer] = (self._own, now)
        for peer, tried in self._tried.items():
            if over := tried.expire(now):
                self._node.network.hint(peer, (), over)

    def hear(self, peer: int, message: PlacesTold) -> None:
        if not self._is_relayed(peer):
            return
        tried = self._tried.setdefault(peer, TriedPlaces())
        if fresh := tried.take(addresses_in(message), self._node.clock()):
            self._node.network.hint(peer, fresh)

    def forget(self, peer: int) -> None:
        """Forget the places of a neighbor, but for the one at which it was found."""
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
