"""The kinds of alarms that every node can raise: what each means, what the node does, and what to do about it.

Features add more; docs/reference_pages.py generates the page docs/reference/alarms.md from all of them.

An alarm stays active until an event of another kind ends it (`ended_by`), or until it has not been raised for
`LASTS_S`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LASTS_S = 600.0
"""The time for which an alarm that no event ends stays active after it was last raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmText:
    """The description of one kind of alarm. Each text is a sentence or two."""

    means: str
    does: str
    advice: str
    ended_by: str | None = None
    """The kind of event about the same member that ends the alarm."""


BACK = "neighbor-back"
"""The kind of event that reports a new session with a neighbor, or that data arrive in the old one again."""
LOST = "neighbor-lost"
"""The kind of alarm about a neighbor from which nothing comes."""

ALARMS: Mapping[str, AlarmText] = {
    LOST: AlarmText(
        means="Nothing has come from a neighbor for about 15 s, or for a minute if it was never connected.",
        does="Goes on with the other neighbors, unless its rounds are sums that need this one, and keeps dialing.",
        advice="Check that its machine runs and can reach this one: cable, address and firewall.",
        ended_by=BACK,
    ),
    "silent-session": AlarmText(
        means="Bytes come over a connection, but for 45 s nothing that the neighbor has sealed.",
        does="Has ended the session and dials again.",
        advice="If this is frequent, look for a middlebox on the way that answers in the neighbor's place.",
        ended_by=BACK,
    ),
    "session-churn": AlarmText(
        means="A neighbor opens session after session.",
        does="Accepts no session from it for half a minute, then a few again.",
        advice="Read the log of that neighbor: it may keep restarting, or its key may run in two places.",
    ),
    "feature-failed": AlarmText(
        means="A feature that only displays something failed on a neighbor's message; the text says which one.",
        does="Has closed the feature's channel with that neighbor until the next session. It keeps training.",
        advice="This is a bug in this software or in a plug-in: report it with the text.",
    ),
    "federation-differs": AlarmText(
        means="A neighbor has a different federation file or model; the text names what differs.",
        does="Refuses its sessions and trains without it.",
        advice="Copy the same federation file (and task) to both machines and restart the node that had the old one.",
        ended_by=BACK,
    ),
    "quarantine": AlarmText(
        means="A neighbor has broken the protocol, too often for an accident.",
        does="Ignores it for the time that the text gives, then puts it on probation.",
        advice="Update its software. If it is up to date, find out who controls that machine, and remove the member.",
        ended_by="probation",
    ),
    "nothing-exchanged": AlarmText(
        means="The session with a neighbor is open, but no exchange has succeeded for many rounds.",
        does="No longer waits for it in its rounds, but keeps asking.",
        advice="Look at the neighbor: its disk may refuse, or it or its link may be too slow for the model.",
    ),
    "removed": AlarmText(
        means="This node was removed from the federation.",
        does="Stops, and keeps its model and state on disk.",
        advice="Nothing, if that was intended. To come back, it joins as a new member with a new key: `p2pfl join`.",
    ),
    "two-places": AlarmText(
        means="Two running processes use the same node.key.",
        does="The later of the two stops, if it can detect that.",
        advice="Stop one of them. A copied SD card or folder needs its own key: `p2pfl key NAME/node.key`.",
    ),
    "storage": AlarmText(
        means="The node's state cannot be written: the disk is full, read-only or broken.",
        does="Exchanges nothing that must be durable, keeps training, and keeps trying to write.",
        advice="Free space on the volume of state_dir, or repair it. Nothing is lost while the process runs.",
        ended_by="storage-restored",
    ),
    "waiting-alone": AlarmText(
        means="No neighbor is connected, so the node does not train.",
        does="Dials and listens until one connects.",
        advice="Start the others. If they run, check addresses, `listen` and firewalls.",
        ended_by="not-alone",
    ),
    "training-alone": AlarmText(
        means="No neighbor was connected for a minute and ten rounds, though some are listed.",
        does="Keeps training its own model and dialing; what it learns is mixed in when a neighbor is back.",
        advice="Check this machine's own link first: it is the likely cause when all neighbors are gone at once.",
        ended_by="not-alone",
    ),
    "too-few-neighbors": AlarmText(
        means="Fewer neighbors are connected than the robust rule needs to withstand malicious ones.",
        does="Trains without mixing.",
        advice="Bring neighbors back, or give the node more edges; `p2pfl check` shows how many it needs.",
        ended_by="enough-neighbors",
    ),
    "hardly-mixes": AlarmText(
        means="Most of this node's rounds were over before an exchange with any neighbor was.",
        does="Keeps training and exchanging, but has learned mostly from its own data.",
        advice="Make rounds longer (`local_steps`, `local_epochs`) or exchanges shorter: a `compressor` that sends "
        "less, a better link. A larger `max_wait_s` lets a round wait longer for its exchange.",
    ),
    "nothing-kept": AlarmText(
        means="The robust rule has discarded nearly all of every neighbor's model for ten rounds.",
        does="Keeps mixing by its rule, but so far learns from its own data alone.",
        advice="See `kept` in `p2pfl status`. With 3b neighbors or fewer, one liar can cause this: give the node "
        "3b + 1. Otherwise its data may be unlike every neighbor's.",
        ended_by="kept-again",
    ),
    "looks-unlike": AlarmText(
        means="Over twenty rounds this neighbor's models have lain farther from the others', or leaned farther the "
        "same way, than those of the other neighbors.",
        does="Nothing: the rule limits what it may do, and its data may be rare.",
        advice="Ask whose machine it is and what its data are. See `unlike` in `/status`, also on its other neighbors.",
        ended_by="looks-alike",
    ),
    "sends-back": AlarmText(
        means="Over twenty rounds this neighbor has shown next to nothing of its own: this node's model, or the mean.",
        does="Nothing: with few neighbors it may stop this node from mixing (`nothing-kept`).",
        advice="See whether it trains at all: its log, its accuracy, `moves` in `/status`.",
        ended_by="looks-alike",
    ),
    "round-failed": AlarmText(
        means="A local round raised an error, or its model was not finite.",
        does="Drops that round and trains the next one from the previous model.",
        advice="Read the log. The usual cause is too high a learning rate; otherwise a bug in the task or its data.",
    ),
    "no-budget": AlarmText(
        means="The federation trains with a privacy budget, but this node has none that it can rely on.",
        does="Does not train. It mixes with the others and shows the mixed model.",
        advice="If this node has never trained, or lost its state, run `p2pfl privacy begin` and restart the node. "
        "Anything it revealed before still counts.",
        ended_by="budget-begun",
    ),
    "noise-prevails": AlarmText(
        means="The loss on the public test set is clearly above its best value: the noise that the privacy budget "
        "requires moves the model more than the data do.",
        does="Keeps training, and spending its budget.",
        advice="Use fewer rounds, a lower learning_rate or larger batches; `p2pfl sim run` shows their effect.",
        ended_by="loss-back",
    ),
    "unscaled-inputs": AlarmText(
        means="One input in this node's data spreads a hundred times as widely as another.",
        does="Trains on the inputs as they are.",
        advice="Scale the inputs in the same way on all nodes, to about -1 to 1, or the small ones hardly count.",
    ),
    "mixing-failed": AlarmText(
        means="The mixing rule raised an error, or its result was not finite.",
        does="Keeps its own model for that round.",
        advice="If the rule is your own code, test it alone. Otherwise find the neighbor that sends extreme values.",
    ),
    "stopped-early": AlarmText(
        means="The others have finished training, and this node stopped with them before its rounds were done.",
        does="Ends with them; its model is the common one.",
        advice="The model is fine. To let this node do more of its rounds, give it less work per round or more time.",
    ),
    "takes-no-part": AlarmText(
        means="All others have finished training; this neighbor has not, and exchanges nothing.",
        does="No longer trains. It ends once the neighbor has been away for linger_s or a quarter of the training.",
        advice="Check that its machine runs and can reach this one. If it is gone for good, there is nothing to do.",
    ),
    "resync": AlarmText(
        means="The two ends of an edge held different state, or one of them lost its state.",
        does="Resets the edge; both keep their models.",
        advice="Now and then this is harmless. If it repeats, check the memory and disk of both machines.",
    ),
    "resync-storm": AlarmText(
        means="One edge was reset again and again.",
        does="Leaves the edge idle for a while.",
        advice="Compare the software versions of both ends, and test the memory of both machines.",
    ),
    "request-refused": AlarmText(
        means="A neighbor's request could not be applied; the text says why.",
        does="Asks the neighbor to reset the edge.",
        advice="If it repeats, compare software versions, and check that the neighbor's model is still finite.",
    ),
    "reply-refused": AlarmText(
        means="A neighbor's reply could not be applied; the text says why.",
        does="Resets the edge.",
        advice="If it repeats, compare software versions, and check that the neighbor's model is still finite.",
    ),
}

OTHER = AlarmText(
    means="An alarm that this version does not describe.",
    does="What its text says.",
    advice="Read the log around it.",
)
