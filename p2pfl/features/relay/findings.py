"""The findings of `p2pfl check` and `launch` about relays: whether the nodes here have what opens them."""

from __future__ import annotations

from p2pfl.config.invites import in_words
from p2pfl.config.model import NodeConfig
from p2pfl.console.wall_clock import seconds_now
from p2pfl.errors import UserError
from p2pfl.features.relay.ticket_files import TicketShelf
from p2pfl.features.relay.tickets import read_token
from p2pfl.net.address import parse_address
from p2pfl.net.names import unknown_hosts
from p2pfl.net.proxy import is_near, proxies_of
from p2pfl.node.findings import Findings, Inspected

SOON_S = 30 * 86_400


class RelayFindings(Findings):
    def of_files(self, inspected: Inspected) -> None:
        federation = inspected.federation
        for index, node in inspected.here.items():
            if not node.relays:
                continue
            try:
                if node.relay_token is not None:
                    read_token(node.relay_token)
                    continue
                ticket = TicketShelf(federation, node.state_dir).ticket(federation.members[index].key)
            except UserError as error:
                inspected.mistakes.append(error)
                continue
            how = "`p2pfl member ticket`" if federation.admin else "relay_token in its node.toml"
            if ticket is None:
                inspected.warnings.append(f"{node.name} has nothing that opens the relays in [network]: {how}")
            elif ticket.until < (now := seconds_now()):
                text = f"the ticket of {node.name} expired at {in_words(ticket.until)}"
                inspected.warnings.append(f"{text}, and by this machine's clock it is {in_words(now)}: {how}")
            elif ticket.until - now < SOON_S:
                inspected.warnings.append(f"the ticket of {node.name} expires at {in_words(ticket.until)}: {how}")
        inspected.warnings += _unknown(inspected.federation.relays, list(inspected.here.values()))


def _unknown(listed: tuple[str, ...], here: list[NodeConfig]) -> list[str]:
    """Return a warning for each relay whose name is unknown; none where a proxy may know it."""
    if any(node.network.proxy not in (None, "none") for node in here):
        return []
    proxies = proxies_of(None, None)
    urls = dict.fromkeys([*listed, *(url for node in here for url in node.relays)])
    asked = {url.partition("#")[0]: parse_address(url, "network.relays") for url in urls}
    asked = {url: one for url, one in asked.items() if not is_near(one.host) and proxies.of(one) is None}
    unknown = unknown_hosts(one.host for one in asked.values())
    return [
        f"the name in the URL of the relay {url} is unknown here: correct it, or the DNS of this machine"
        for url, one in asked.items()
        if one.host in unknown
    ]
