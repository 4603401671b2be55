"""The findings of `p2pfl check` and `launch` about relays: whether the nodes here have what opens them."""

from __future__ import annotations

from p2pfl.config.charter import realm_of
from p2pfl.config.invites import in_words
from p2pfl.console.wall_clock import seconds_now
from p2pfl.errors import UserError
from p2pfl.features.relay.tickets import read_tickets, read_token, ticket_of, tickets_file
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
                tickets = read_tickets(tickets_file(federation))
            except UserError as error:
                inspected.mistakes.append(error)
                continue
            ticket = ticket_of(tickets, realm=realm_of(federation), key=federation.members[index].key)
            how = "`p2pfl member ticket`" if federation.admin else "relay_token in its node.toml"
            if ticket is None:
                inspected.warnings.append(f"{node.name} has nothing that opens the relays in [network]: {how}")
            elif ticket.until - seconds_now() < SOON_S:
                inspected.warnings.append(f"the ticket of {node.name} expires at {in_words(ticket.until)}: {how}")
