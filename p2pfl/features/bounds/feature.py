"""The bounds of one node: outside them it tells its neighbors, ends its sessions, and trains no round.

A round without neighbors would only lead its model away from theirs. A bound that is for one neighbor ends the sessions
with that one. Neighbors that were told raise no alarm, and hardly dial until it is over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from p2pfl.features.bounds.allowance import DAY, GB, TOTAL, Hours, MonthCounts, seconds_between
from p2pfl.net.side import Feeding, SideChannel
from p2pfl.node.feature import Attached, Feature, NodeView
from p2pfl.node.gate import Answer, RoundPlan, Wait
from p2pfl.reporting.status import NodeResult

LONGEST_S = 32 * DAY.total_seconds()
"""The longest pause that a neighbor may announce, and the longest time without it before it is missed again."""
FAREWELL_S = 2.0
"""How long neighbors have to hear of a pause before the sessions end."""
PAUSE_S = 60.0
"""For how long no session opens after a look; the looks go on in a pause."""
BACK_S = 10.0
"""How long a session lasts before a neighbor that paused is taken to be back: it may end one that comes too early."""
TELL_AGAIN_S = 600.0
"""The shortest time between two log lines about one neighbor's pauses."""
ASK_AGAIN = Wait(1.0)

notice = logging.getLogger("p2pfl.notice")


class Pausing(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=1):
    """The sender ends its sessions with the receiver until `for_s` seconds from now: its own bounds say so."""

    for_s: Annotated[float, Meta(ge=0.0, le=LONGEST_S)]


CHANNEL = SideChannel("pause", Pausing, most_bytes=32, per_s=0.1, at_once=8.0)


class BoundsFeature(Feature):
    name = "bounds"

    def attach(self, node: NodeView) -> Attached | None:
        return TrafficBounds(node)


class PauseTalk:
    """The handler of the channel."""

    def __init__(self, bounds: TrafficBounds) -> None:
        self._bounds = bounds

    def opened(self, peer: int) -> None:
        self._bounds.meet(peer)

    def closed(self, peer: int) -> None:
        self._bounds.near.pop(peer, None)

    def hear(self, peer: int, message: Pausing) -> None:
        self._bounds.hear(peer, message)


@dataclass(slots=True)
class Pause:
    """A pause of this node, with all neighbors or with one."""

    until: datetime
    why: str
    since: float
    """When it began, on the node's clock."""


@dataclass(slots=True)
class NeighborPause:
    """What a neighbor has said about its pauses; times are on the node's clock."""

    first_at: float
    """When it first said so since it was last here."""
    back_at: float
    told_at: float
    """When the log was last told."""


class TrafficBounds(Attached):
    def __init__(self, node: NodeView, now: Callable[[], datetime] = datetime.now) -> None:
        self._node, self._now = node, now
        setup = node.setup()
        own = self._own = setup.node.network
        self._hours = None if own.hours is None else Hours.parse(own.hours)
        present = setup.federation.present
        self._index = {member.name: member.index for member in present if member.name in own.neighbors}
        bounds = {name: each.month_gb * GB for name, each in own.neighbors.items() if each.month_gb is not None}
        if own.month_gb is not None:
            bounds[TOTAL] = own.month_gb * GB
        self._month = MonthCounts(setup.node.state_dir, bounds, now()) if bounds else None
        self.near: dict[int, float] = {}
        """The neighbors with a session in which the channel is open, and when it opened; infinite if they pause."""
        self._absent: dict[int, NeighborPause] = {}
        self._pauses: dict[int, Pause] = {}
        """The pauses with one neighbor."""
        self._pause: Pause | None = None
        self._back_at = 0.0
        """When all neighbors should have sessions again after this node's own pause."""
        self._talk = PauseTalk(self)
        node.presence.is_excused = self.is_excused

    @property
    def until(self) -> datetime | None:
        """When this node's pause ends; None if there is none."""
        return None if self._pause is None else self._pause.until

    def feedings(self) -> tuple[Feeding, ...]:
        return (Feeding(channel=CHANNEL, handler=self._talk),)

    # -- of the neighbors ---------------------------------------------------------------------------------------------

    def meet(self, peer: int) -> None:
        self.near[peer] = self._node.clock()
        pause = self._pause or self._pauses.get(peer)
        if pause is not None:
            self._tell([peer], pause.until)

    def is_excused(self, peer: int) -> bool:
        """Return True if a neighbor has said that it pauses, or this node does, and it may not be back yet."""
        absence, now = self._absent.get(peer), self._node.clock()
        if self._pause is not None or peer in self._pauses or now < self._back_at:
            return True
        return absence is not None and now < min(absence.back_at, absence.first_at + LONGEST_S)

    def hear(self, peer: int, message: Pausing) -> None:
        now = self._node.clock()
        absence = self._absent.setdefault(peer, NeighborPause(now, now, float("-inf")))
        absence.back_at = now + message.for_s + PAUSE_S
        self.near[peer] = float("inf")
        self._node.network.spare(peer, message.for_s)
        if now - absence.told_at >= TELL_AGAIN_S:
            absence.told_at = now
            self._node.feed.tell("neighbor-pauses", peer, f"for {readable(message.for_s)}, as its own bounds say")

    def _look_who_is_back(self) -> None:
        now = self._node.clock()
        for peer in [peer for peer, since in self.near.items() if peer in self._absent and now - since >= BACK_S]:
            del self._absent[peer]
            self._node.network.spare(peer, 0.0)

    # -- of this node -------------------------------------------------------------------------------------------------

    def look(self) -> None:
        self._look_who_is_back()
        now = self._now()
        if self._month is not None:
            self._month.add(self._traffic(), now, self._node.clock())
        one_by_one = self._closed_to_some(now)
        for_all = self._closed_to_all(now, one_by_one)
        if for_all is not None:
            self._pause = self._hold(self._pause, *for_all, peer=None)
            self._node.status.waits_for = self._node.status.waits_for or "paused"
        elif self._pause is not None:
            self._go_on()
        for peer, found in one_by_one.items():
            self._pauses[peer] = self._hold(self._pauses.get(peer), *found, peer=peer)
        for peer in [peer for peer in self._pauses if peer not in one_by_one]:
            self._go_on_with(peer)

    def before_round(self, plan: RoundPlan) -> Answer:  # noqa: ARG002 - whatever round it is
        return None if self._pause is None else ASK_AGAIN

    def status(self) -> Mapping[str, Any]:
        own, found = self._own, dict[str, Any]()
        if own.max_kbit_s is not None:
            found["max_kbit_s"] = own.max_kbit_s
        if self._hours is not None:
            found["hours"] = own.hours
        if self._month is not None and own.month_gb is not None:
            found |= {"month_gb": own.month_gb, "month_used_gb": round(self._month.used(TOTAL) / GB, 3)}
        found |= _in_words(self._pause)
        neighbors = {name: self._status_of(name, index) for name, index in self._index.items()}
        for peer, absence in self._absent.items():
            back = self._now() + timedelta(seconds=absence.back_at - self._node.clock())
            name = self._node.setup().federation.members[peer].name
            neighbors.setdefault(name, {})["says_paused_until"] = back.isoformat(timespec="minutes")
        return found | ({"by_neighbor": neighbors} if neighbors else {})

    def _status_of(self, name: str, peer: int) -> dict[str, Any]:
        bounds, found = self._own.neighbors[name], dict[str, Any]()
        if bounds.max_kbit_s is not None:
            found["max_kbit_s"] = bounds.max_kbit_s
        if self._month is not None and bounds.month_gb is not None:
            found |= {"month_gb": bounds.month_gb, "month_used_gb": round(self._month.used(name) / GB, 3)}
        return found | _in_words(self._pauses.get(peer))

    async def over(self, result: NodeResult) -> None:  # noqa: ARG002 - whatever it is
        if self._month is not None:
            self._month.write(self._node.clock())

    def _traffic(self) -> dict[str, int]:
        """Return what this process has sent and received, by what may bound it."""
        counters = self._node.status.counters
        found = {name: counters.peers[index] for name, index in self._index.items()} | {TOTAL: counters.total}
        return {name: traffic.bytes_sent + traffic.bytes_received for name, traffic in found.items()}

    def _closed_to_some(self, now: datetime) -> dict[int, tuple[datetime, str]]:
        """Return until when there is nothing left for single neighbors, and why."""
        if self._month is None:
            return {}
        found = {}
        for name, peer in self._index.items():
            if (until := self._month.closed_until(name, now)) is not None:
                why = f"{self._own.neighbors[name].month_gb:g} GB of this month with {name} are used up"
                found[peer] = until, why
        return found

    def _closed_to_all(
        self, now: datetime, one_by_one: Mapping[int, tuple[datetime, str]]
    ) -> tuple[datetime, str] | None:
        """Return until when this node pauses, and why; None if it does not."""
        hours = None if self._hours is None else self._hours.closed_until(now)
        month = None if self._month is None else self._month.closed_until(TOTAL, now)
        found = []
        if hours is not None:
            found.append((hours, f"its hours are {self._own.hours}"))
        if month is not None:
            found.append((month, f"{self._own.month_gb:g} GB of this month are used up"))
        peers = self._node.core.peers
        if peers and all(peer in one_by_one for peer in peers):
            found.append(min(one_by_one[peer] for peer in peers))
        return max(found, default=None)

    def _hold(self, pause: Pause | None, until: datetime, why: str, *, peer: int | None) -> Pause:
        """Begin or continue a pause, with one neighbor or all; sessions end once their other ends have been told."""
        if pause is None:
            pause = Pause(until, why, self._node.clock())
            self._tell(sorted(self.near) if peer is None else {peer} & self.near.keys(), until)
            self._node.feed.tell("pauses", peer, f"until {until:%Y-%m-%d %H:%M}: {why}")
        pause.until, pause.why = until, why
        if self._node.clock() - pause.since >= FAREWELL_S:
            self._node.network.pause(PAUSE_S, f"this node pauses: {why}", None if peer is None else [peer])
        return pause

    def _go_on(self) -> None:
        self._pause, self._back_at = None, self._node.clock() + PAUSE_S
        if self._node.status.waits_for == "paused":
            self._node.status.waits_for = ""
        self._node.network.pause(0.0, "", None)
        self._node.feed.tell("goes-on", None, "the pause is over")

    def _go_on_with(self, peer: int) -> None:
        now = self._node.clock()
        del self._pauses[peer]
        self._absent[peer] = NeighborPause(now, now + PAUSE_S, now)
        self._node.network.pause(0.0, "", [peer])
        self._node.feed.tell("goes-on", peer, "the pause with it is over")

    def _tell(self, peers: Collection[int], until: datetime) -> None:
        for_s = seconds_between(self._now(), until)
        for peer in peers:
            self._node.say(peer, CHANNEL, Pausing(for_s=min(LONGEST_S, max(0.0, for_s))))


def _in_words(pause: Pause | None) -> dict[str, str]:
    if pause is None:
        return {}
    return {"paused_until": pause.until.isoformat(timespec="minutes"), "paused_because": pause.why}


def readable(seconds: float) -> str:
    """Return a time for people, such as `9 h 30 min`."""
    minutes = round(seconds / 60)
    days, hours = divmod(minutes // 60, 24)
    parts = [(days, "d"), (hours, "h"), (minutes % 60, "min")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "a moment"
