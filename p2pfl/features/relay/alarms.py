"""The alarms about relays: what each means, what the node does, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.reporting.alarms import AlarmText

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
        advice="Run `p2pfl member ticket` where the admin key is: nodes that run get the new tickets.",
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
