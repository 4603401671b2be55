"""The alarms that need a view of the whole node: what each means, what the node does, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.reporting.alarms import AlarmText

ALARMS: Mapping[str, AlarmText] = {
    "disk-low": AlarmText(
        means="The volume of state_dir has less free space than one more snapshot of the state needs.",
        does="Keeps shorter logs and one generation less; continues as long as the disk accepts writes.",
        advice="Free space on the volume of state_dir before it is full.",
        ended_by="disk-roomy",
    ),
    "loss-grows": AlarmText(
        means="The loss on the test rows is clearly above its best value, and the loss of the node's own rounds "
        "has grown too; without such rows, the latter is ten times that of the very first round.",
        does="Keeps training.",
        advice="Lower learning_rate first; with trees, set patience or lower eta. If only one node has this, look at "
        "its data; if all do, some may be malicious.",
        ended_by="loss-back",
    ),
    "software-differs": AlarmText(
        means="A member runs another version of p2pfl.",
        does="Nothing: versions with the same protocol work together.",
        advice="Update the older one when it suits you, so that all have the same fixes.",
        ended_by="software-agrees",
    ),
    "state-behind": AlarmText(
        means="A neighbor has a report that this node signed many rounds after those in its state: the log was cut, an "
        "old copy was put back, or the disk had not kept what it confirmed.",
        does="Goes on from the state that it has; its edges start anew with whole models.",
        advice="If nobody put an old copy back, look for who can write to state_dir, and test the disk.",
    ),
}
