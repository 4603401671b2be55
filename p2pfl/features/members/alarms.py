"""The alarms of a charter: what each means, what the node does, what to do."""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.reporting.alarms import AlarmText

ALARMS: Mapping[str, AlarmText] = {
    "charter-older": AlarmText(
        means="A neighbor says that it has a newer charter, and does not hand it over, or hands over what is none.",
        does="Keeps the charter that it has, and asks again in a new session.",
        advice="Compare with `p2pfl member list`. Any further `p2pfl member` command brings the newest one to all.",
    ),
    "charter-conflict": AlarmText(
        means="One version of the charter was signed twice, with different contents.",
        does="Goes by the one that all others end with too: that of the larger digest.",
        advice="Run `p2pfl member list`, and make the change that is missing once more.",
    ),
    "charter-waits": AlarmText(
        means="The newest charter does not fit this node while it runs; the text says why.",
        does="Cuts off whoever that charter does not list, and otherwise goes by the one before until it is restarted.",
        advice="Restart the node. A later charter that fits takes effect by itself.",
        ended_by="charter-in-force",
    ),
}
