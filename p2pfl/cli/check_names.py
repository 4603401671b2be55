"""Addresses whose names this machine's DNS does not know. `p2pfl check` warns of them."""

from __future__ import annotations

import socket
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from p2pfl.config.model import FederationConfig, NodeConfig

MOST_NAMES = 32
PATIENCE_S = 2.0
"""How long all answers together may take; a name without an answer by then is not judged."""


def unknown_names(federation: FederationConfig, here: Iterable[NodeConfig]) -> list[str]:
    """Return a warning for each member whose name is unknown; none where a proxy may know it."""
    from p2pfl.net.address import parse_address  # noqa: PLC0415 - `--help` stays instant
    from p2pfl.net.proxy import is_near, proxies_of  # noqa: PLC0415 - as above

    if any(node.network.proxy not in (None, "none") for node in here):
        return []
    proxies = proxies_of(None, None)
    asked = {}
    for member in federation.present:
        address = None if member.address is None else parse_address(member.address, "address")
        if address is not None and not is_near(address.host) and proxies.of(address) is None:
            asked[member.name] = address
    unknown: set[str] = set()
    threads = [
        Thread(target=_ask, args=(address.host, unknown), daemon=True) for address in list(asked.values())[:MOST_NAMES]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S / len(threads))
    return [
        f"the name in the address of {name}, {address}, is unknown here: correct it, or the DNS of this machine"
        for name, address in asked.items()
        if address.host in unknown
    ]


def _ask(host: str, unknown: set[str]) -> None:
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno == socket.EAI_NONAME:  # not: no DNS answers, as on a machine that is offline
            unknown.add(host)
    except OSError:
        return
