"""Addresses whose names this machine's DNS does not know. `p2pfl check` warns of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from p2pfl.net.address import parse_address
from p2pfl.net.names import unknown_hosts
from p2pfl.net.proxy import is_near, proxies_of

if TYPE_CHECKING:
    from p2pfl.config.model import FederationConfig, NodeConfig


def unknown_names(federation: FederationConfig, here: Iterable[NodeConfig]) -> list[str]:
    """Return a warning for each member whose name is unknown; none where a proxy may know it."""
    if any(node.network.proxy not in (None, "none") for node in here):
        return []
    proxies = proxies_of(None, None)
    asked = {}
    for member in federation.present:
        address = None if member.address is None else parse_address(member.address, "address")
        if address is not None and not is_near(address.host) and proxies.of(address) is None:
            asked[member.name] = address
    unknown = unknown_hosts(address.host for address in asked.values())
    return [
        f"the name in the address of {name}, {address}, is unknown here: correct it, or the DNS of this machine"
        for name, address in asked.items()
        if address.host in unknown
    ]
