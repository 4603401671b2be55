"""The alarms of who looks for what no single part sees: what each means, what the node does, what to do."""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.reporting.alarms import AlarmText

ALARMS: Mapping[str, AlarmText] = {
    "disk-low": AlarmText(
        means="The volume of state_dir has less room than one more snapshot of the state takes.",
        does="Keeps shorter logs and one generation less; goes on as long as the disk takes anything.",
        advice="Make room on the volume of state_dir before it is full.",
        ended_by="disk-roomy",
    ),
    "loss-grows": AlarmText(
        means="The loss on the common test set is clearly higher than it was at its best, and that of the own rounds "
        "has grown with it; without such a set, that of the own rounds is ten times the very first round's.",
        does="Goes on training.",
        advice="Lower learning_rate first. If one node alone has it, look at its data; if all do, at who may lie.",
        ended_by="loss-back",
    ),
    "software-differs": AlarmText(
        means="A member runs another version of p2pfl.",
        does="Nothing: versions with the same protocol work together.",
        advice="Update the older one when it suits you, so that all have the same corrections.",
        ended_by="software-agrees",
    ),
}
