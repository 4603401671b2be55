"""The alarms about rounds that are sums."""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.reporting.alarms import AlarmText

ALARMS: Mapping[str, AlarmText] = {
    "sum-refused": AlarmText(
        means="A round's secure sum did not come about; the text says why. Mostly too few members are there.",
        does="Keeps its part and tries again; nothing is learned meanwhile.",
        advice="Start the members that are missing. Trees need all of them; shared noise needs privacy.least of them.",
        ended_by="sum-done",
    ),
    "sum-held-up": AlarmText(
        means="A member holds secure sums up, by what it signed or failed to sign in time; the text says how.",
        does="Gives it its turn to open and lead sums last, and after three times leaves it out where others suffice.",
        advice="Look at that member: it may be slow or cut off. If it does so again and again, remove it.",
    ),
    "sum-spoiled": AlarmText(
        means="A sum is larger than right parts can make it: some member's part was wrong. Nobody knows whose.",
        does="Leaves that sum out, and gives a part again; with shared noise another one, which is paid for.",
        advice="If it happens again, look for the member whose software or files differ.",
        ended_by="sum-done",
    ),
    "no-part": AlarmText(
        means="This node gives no part to a round: its training failed, or its budget does not allow it.",
        does="Follows the others' model.",
        advice="Read the text; `p2pfl privacy show` says what is spent.",
        ended_by="sum-done",
    ),
    "members-changed": AlarmText(
        means="The federation's members have changed while nodes run whose rounds are sums.",
        does="Goes on with the members that it began with.",
        advice="Start all nodes again.",
    ),
}
