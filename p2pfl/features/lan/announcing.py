"""The announcement of a node on its LAN and the members that it looks for, read from its files."""

from __future__ import annotations

from collections.abc import Callable

from p2pfl.config.federation_id import federation_id
from p2pfl.config.model import FederationConfig, Member, NodeConfig
from p2pfl.features.lan.beacon import own_about, prefix_of, seal
from p2pfl.features.lan.discovery import Discovery
from p2pfl.features.lan.interfaces import all_interfaces, cover
from p2pfl.net.address import parse_address
from p2pfl.node.feature import NetworkView


def discovery_of(
    member: Member, node: NodeConfig, federation: Callable[[], FederationConfig], links: NetworkView
) -> Discovery:
    """Return the discovery of one node.

    `links` must be bound already, because their port is announced. `federation` is called for the members at any time.
    """
    now, host = federation(), parse_address(node.listen, "listen").host

    def others() -> dict[str, int]:
        found = federation()
        return {prefix_of(found.name, other.key): other.index for other in found.members if other.index != member.index}

    return Discovery(
        prefix=prefix_of(now.name, member.key),
        about=seal(own_about(federation_id(now)), now.name, member.key),
        port=links.port,
        interfaces=lambda: cover(all_interfaces(), host, node.interfaces),
        members=others,
        on_hint=links.hint,
        on_change=links.end_stale,
        is_complete=lambda: links.is_complete,
    )
