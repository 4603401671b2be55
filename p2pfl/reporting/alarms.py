"""The kinds of alarm of every node: what each means, what the node does, what to do.

Features bring more; docs/reference/alarms.md has all of them for readers.

An alarm stands until it is settled: by an event of another kind (`ended_by`), or because it has not come again for
`LASTS_S`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LASTS_S = 600.0
"""How long an alarm that nothing ends stands after it was raised last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmText:
    """One kind of alarm. Each text is a sentence or two."""

    means: str
    does: str
    advice: str
    ended_by: str | None = None
    """The kind of event, about the same member, after which it does not stand any more."""


BACK = "neighbor-back"
"""The kind of the event that a neighbor has a session again."""

ALARMS: Mapping[str, AlarmText] = {
    "neighbor-lost": AlarmText(
        means="A neighbor has had no session for 15 s; one that was never there, for a minute.",
        does="Trains and mixes with the other neighbors, and goes on dialing.",
        advice="Look whether its machine runs and reaches this one: then at its cable, address and firewall.",
        ended_by=BACK,
    ),
    "silent-session": AlarmText(
        means="Nothing that the neighbor has sealed came for 45 s over a connection that seems to be open.",
        does="Has ended the session and dials again.",
        advice="If it comes often: a cable, a Wi-Fi link or a middlebox that swallows packets on the way to it.",
        ended_by=BACK,
    ),
    "session-churn": AlarmText(
        means="A neighbor opens one session after the other.",
        does="Takes no session from it for half a minute, then a few again.",
        advice="Read the log of that neighbor: it may be restarting all the time, or its key runs in two places.",
    ),
    "feature-failed": AlarmText(
        means="A feature that is for eyes only has failed on something that a neighbor said; the text says which one.",
        does="Has closed the feature's channel with that neighbor until there is another session. It goes on learning.",
        advice="It is a mistake of this software, or of a plug-in: report it with the text.",
    ),
    "federation-differs": AlarmText(
        means="A neighbor has another federation file, or another model; the text names what differs.",
        does="Refuses its sessions and trains without it.",
        advice="Copy the same federation file (and task) to both machines and restart the node that had the old one.",
        ended_by=BACK,
    ),
    "quarantine": AlarmText(
        means="A neighbor has broken the rules of the protocol, often enough that it was no accident.",
        does="Hears nothing from it for the time that the text names, then gives it a trial.",
        advice="Update its software; if that is right, look at who controls that machine, and remove the member.",
        ended_by="probation",
    ),
    "nothing-exchanged": AlarmText(
        means="The session with a neighbor is open, and still no exchange has come about for many rounds.",
        does="Does not wait for it any more in its rounds, and goes on asking.",
        advice="Look at the neighbor: its disk may refuse, or it, or its link, is too slow for the model.",
    ),
    "removed": AlarmText(
        means="This node was removed from the federation.",
        does="Stops, and keeps on disk what it has learned.",
        advice="Nothing, if that was meant. To come back, it joins as a new member, with a new key: `p2pfl join`.",
    ),
    "two-places": AlarmText(
        means="Two running processes have the same node.key.",
        does="The later one of the two stops, when it can tell that it is.",
        advice="Stop one of them. A copied SD card or folder needs a key of its own: `p2pfl key NAME/node.key`.",
    ),
    "storage": AlarmText(
        means="The disk does not take the node's state: it is full, read-only or broken.",
        does="Exchanges nothing that must be durable, goes on training, and tries again all the time.",
        advice="Make room on the volume of state_dir, or repair it. Nothing is lost while the process runs.",
        ended_by="storage-restored",
    ),
    "waiting-alone": AlarmText(
        means="No neighbor is there, so nothing is trained.",
        does="Dials and listens until one comes.",
        advice="Start the others; if they run, look at addresses, `listen` and firewalls.",
        ended_by="not-alone",
    ),
    "training-alone": AlarmText(
        means="For a minute and ten rounds no neighbor was there, though some are listed.",
        does="Goes on training its own model and dialing; what it learns is mixed in when a neighbor is back.",
        advice="Look at this machine's own link first: when all neighbors are gone at once, it is the likely cause.",
        ended_by="not-alone",
    ),
    "too-few-neighbors": AlarmText(
        means="Fewer neighbors are there than the robust rule needs to keep liars from deciding.",
        does="Trains without mixing.",
        advice="Bring neighbors back, or give the node more edges; `p2pfl check` shows how many it needs.",
        ended_by="enough-neighbors",
    ),
    "nothing-kept": AlarmText(
        means="The robust rule mixes, and for ten rounds has kept next to nothing of any neighbor's model.",
        does="Goes on mixing by its rule; meanwhile it learns from its own data alone.",
        advice="See `kept` in `p2pfl status`: with 3b neighbors or fewer one liar can do this; give it 3b + 1. Else no "
        "neighbor's data are like its own.",
        ended_by="kept-again",
    ),
    "round-failed": AlarmText(
        means="A local round raised, or ended in no finite model.",
        does="Drops that round and trains the next one from the model before it.",
        advice="Read the log. A learning rate that is too high is the usual cause; else a bug in the task or its data.",
    ),
    "no-budget": AlarmText(
        means="The federation trains with a privacy budget, and there is none at this node that it could rely on.",
        does="Trains nothing, mixes with the others, and shows what it has mixed.",
        advice="If this node has never trained, or its state is lost: `p2pfl privacy begin`, then restart the node. "
        "What was told before counts too.",
        ended_by="budget-begun",
    ),
    "noise-prevails": AlarmText(
        means="The loss on the public test set is clearly higher than it was at its best: the noise that the privacy "
        "budget demands moves the model more than the data do.",
        does="Goes on training, and spending.",
        advice="Fewer rounds, a lower learning_rate or larger batches; `p2pfl sim run` shows what they do.",
        ended_by="loss-back",
    ),
    "unscaled-inputs": AlarmText(
        means="One of the inputs in this node's data spreads a hundred times as much as another.",
        does="Trains on them as they are.",
        advice="Scale the inputs alike on all nodes, to about -1 to 1: else the small ones hardly count.",
    ),
    "data-refused": AlarmText(
        means="The data were to be read again, and what is there now cannot be used; the text says why.",
        does="Goes on learning from the data that it has read before.",
        advice="Correct the file: write it under another name, then rename it. The node looks again by itself.",
        ended_by="data-reloaded",
    ),
    "mixing-failed": AlarmText(
        means="The rule for mixing raised, or gave no finite model.",
        does="Keeps its own model for that round.",
        advice="If the rule is your own code, test it alone; else look which neighbor sends extreme values.",
    ),
    "stopped-early": AlarmText(
        means="The others have ended, and this node's training with them, before it had done all its rounds.",
        does="Closes with them; its model is the common one.",
        advice="Nothing is wrong with the model. For a fairer share give this node fewer rounds' work, or more time.",
    ),
    "takes-no-part": AlarmText(
        means="All others are through with their training; this neighbor is not, and exchanges nothing.",
        does="Trains no more. It ends once the neighbor has been away for linger_s or a quarter of the training.",
        advice="Look whether that machine runs and reaches this one. If it is gone for good, nothing is left to do.",
    ),
    "resync": AlarmText(
        means="Both ends of an edge held different things, or one of them has lost what it held.",
        does="Begins the edge anew; both keep their models.",
        advice="Now and then it is harmless. If it repeats, look at the memory and the disk of both machines.",
    ),
    "resync-storm": AlarmText(
        means="One edge was begun anew again and again.",
        does="Lets the edge rest for a while.",
        advice="Compare software versions of both ends, and test the memory of both machines.",
    ),
    "request-refused": AlarmText(
        means="What a neighbor sent could not be applied; the text says why.",
        does="Asks it to begin the edge anew.",
        advice="If it repeats, compare software versions, and look whether that neighbor's model is still finite.",
    ),
    "reply-refused": AlarmText(
        means="What a neighbor answered could not be applied; the text says why.",
        does="Begins the edge anew.",
        advice="If it repeats, compare software versions, and look whether that neighbor's model is still finite.",
    ),
}

OTHER = AlarmText(
    means="An alarm that this version does not describe.",
    does="What its text says.",
    advice="Read the log around it.",
)

NEWS: Mapping[str, str] = {
    BACK: "A session with the neighbor is open again.",
    "back": "A member that is no neighbor is heard again.",
    "budget-begun": "The node begins to train with a privacy budget.",
    "budget-spent": "The node has spent its privacy budget and trains no more.",
    "charter-in-force": "A newer charter takes effect.",
    "data-reloaded": "The data were read again.",
    "disk-roomy": "There is room for a snapshot again.",
    "enough-neighbors": "Enough neighbors are there again for the robust rule.",
    "federation-changed": "Members, their addresses or keys, the rounds or the graph have changed.",
    "finished": "This node, or a member, has done all its rounds.",
    "forgets": "The loss on the common test set grows while members are away, whose data nobody brings.",
    "joined": "This node begins at the others' round, or hears of a member for the first time.",
    "kept-again": "Something of the neighbors' models is kept again.",
    "left": "A member has stopped before all its rounds were done.",
    "loss-back": "The loss is close to its best again.",
    "neighbor-away": "The session with a neighbor has ended.",
    "new-life": "A member has begun anew, without what it had learned.",
    "not-alone": "A neighbor is there.",
    "not-heard": "A member that is no neighbor has not been heard of for a while.",
    "overfits": "The loss on the common test set grows, and the model fits the node's own rows ever better.",
    "probation": "A quarantine is over, and the neighbor is on trial.",
    "software-agrees": "The member runs the same version.",
    "started": "The node has started.",
    "storage-restored": "The disk takes the state again.",
    "trained-enough": "The node's training has ended by `stop`.",
}
"""Kinds of events that are told and are no alarm; some end one (`AlarmText.ended_by`)."""
