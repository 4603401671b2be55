"""The alarms about charters: what each means, what the node does, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.reporting.alarms import AlarmText

ALARMS: Mapping[str, AlarmText] = {
    "charter-older": AlarmText(
        means="A neighbor says that it has a newer charter, but does not send it, or sends an invalid one.",
        does="Keeps its own charter, and asks again in a new session.",
        advice="Compare with `p2pfl member list`. Any further `p2pfl member` command brings the newest charter to all.",
    ),
    "charter-conflict": AlarmText(
        means="One version of the charter was signed twice, with different contents.",
        does="Uses the one with the larger digest, as all other nodes do.",
        advice="Run `p2pfl member list`, and repeat the change that is missing.",
    ),
    "charter-waits": AlarmText(
        means="The newest charter does not fit this node while it runs; the text says why.",
        does="Cuts off nodes that it does not list. Otherwise follows the previous charter until restarted.",
        advice="Restart the node. A later charter that fits takes effect by itself.",
        ended_by="charter-in-force",
    ),
}
