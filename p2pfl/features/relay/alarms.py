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
    "relay-spoiled": AlarmText(
        means="A line through a relay carried what the other end did not seal, or nothing at all.",
        does="Has ended that session, blames no member, and prefers other ways to that member for five minutes.",
        advice="If this is frequent, find out who runs that relay, or what changes data on the way to it.",
    ),
}
