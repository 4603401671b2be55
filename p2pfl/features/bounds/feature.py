"""The bounds of one node: outside them it tells its neighbors, ends its sessions, and trains no round.

A round without neighbors would only lead its model away from theirs. Neighbors that were told raise no alarm, and leave
it to this node to dial again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from p2pfl.features.bounds.allowance import DAY, GB, Hours, MonthCount
from p2pfl.net.side import Feeding, SideChannel
from p2pfl.node.feature import Attached, Feature, NodeView
from p2pfl.node.gate import Answer, RoundPlan, Wait
from p2pfl.reporting.status import NodeResult

LONGEST_S = 32 * DAY.total_seconds()
FAREWELL_S = 2.0
"""How long neighbors have to hear of a pause before the sessions end."""
PAUSE_S = 60.0
"""For how long no session opens after a look; the looks go on in a pause."""
ASK_AGAIN = Wait(1.0)

notice = logging.getLogger("p2pfl.notice")


class Pausing(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=1):
    """The sender ends its sessions until `for_s` seconds from now: its own bounds say so."""

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
        self._bounds.near.discard(peer)

    def hear(self, peer: int, message: Pausing) -> None:
        self._bounds.hear(peer, message)


class TrafficBounds(Attached):
    def __init__(self, node: NodeView, now: Callable[[], datetime] = datetime.now) -> None:
        self._node, self._now = node, now
        own = self._own = node.setup().node.network
        self._hours = None if own.hours is None else Hours.parse(own.hours)
        self._month = None
        if own.month_gb is not None:
            self._month = MonthCount(node.setup().node.state_dir, own.month_gb * GB, now())
        self.near: set[int] = set()
        """The neighbors with a session in which the channel is open."""
        self._pausing: dict[int, float] = {}
        """When the neighbors that pause come back, on the node's clock."""
        self.until: datetime | None = None
        """When this node's pause ends; None if there is none."""
        self._why, self._since = "", 0.0
        self._back_at = 0.0
        """When all neighbors should have sessions again after this node's own pause."""
        node.presence.is_excused = self.is_excused

    def feedings(self) -> tuple[Feeding, ...]:
        return (Feeding(channel=CHANNEL, handler=PauseTalk(self)),)

    # -- of the neighbors ---------------------------------------------------------------------------------------------

    def meet(self, peer: int) -> None:
        self.near.add(peer)
        self._pausing.pop(peer, None)
        if self.until is not None:
            self._tell(peer, self.until)

    def is_excused(self, peer: int) -> bool:
        """Return True if a neighbor has said that it pauses, or this node does, and it may not be back yet."""
        return self.until is not None or self._node.clock() < max(self._back_at, self._pausing.get(peer, 0.0))

    def hear(self, peer: int, message: Pausing) -> None:
        self._pausing[peer] = self._node.clock() + message.for_s + PAUSE_S
        self._node.network.spare(peer, message.for_s)
        self._node.feed.tell("neighbor-pauses", peer, f"for {readable(message.for_s)}, as its own bounds say")

    # -- of this node -------------------------------------------------------------------------------------------------

    def look(self) -> None:
        now = self._now()
        if self._month is not None:
            traffic = self._node.status.counters.total
            self._month.add(traffic.bytes_sent + traffic.bytes_received, now, self._node.clock())
        until = self._closed_until(now)
        if until is None:
            if self.until is not None:
                self._go_on()
            return
        if self.until is None:
            self._since = self._node.clock()
            for peer in sorted(self.near):
                self._tell(peer, until)
            self._node.feed.tell("pauses", None, f"until {until:%Y-%m-%d %H:%M}: {self._why}")
        self.until = until
        self._node.status.waits_for = self._node.status.waits_for or "paused"
        if self._node.clock() - self._since >= FAREWELL_S:
            self._node.network.pause(PAUSE_S, f"this node pauses: {self._why}")

    def before_round(self, plan: RoundPlan) -> Answer:  # noqa: ARG002 - whatever round it is
        return None if self.until is None else ASK_AGAIN

    def status(self) -> Mapping[str, Any]:
        own, found = self._own, dict[str, Any]()
        if own.max_kbit_s is not None:
            found["max_kbit_s"] = own.max_kbit_s
        if self._hours is not None:
            found["hours"] = own.hours
        if self._month is not None:
            found |= {"month_gb": own.month_gb, "month_used_gb": round(self._month.used / GB, 3)}
        if self.until is not None:
            found |= {"paused_until": self.until.isoformat(timespec="minutes"), "paused_because": self._why}
        return found

    async def over(self, result: NodeResult) -> None:  # noqa: ARG002 - whatever it is
        if self._month is not None:
            self._month.write(self._node.clock())

    def _closed_until(self, now: datetime) -> datetime | None:
        hours = None if self._hours is None else self._hours.closed_until(now)
        month = None if self._month is None else self._month.closed_until(now)
        if month is not None:
            self._why = f"{self._own.month_gb:g} GB of this month are used up"
        elif hours is not None:
            self._why = f"its hours are {self._own.hours}"
        return max([one for one in (hours, month) if one is not None], default=None)

    def _go_on(self) -> None:
        self.until, self._back_at = None, self._node.clock() + PAUSE_S
        if self._node.status.waits_for == "paused":
            self._node.status.waits_for = ""
        self._node.network.pause(0.0, "")
        self._node.feed.tell("goes-on", None, "the pause is over")

    def _tell(self, peer: int, until: datetime) -> None:
        for_s = (until - self._now()).total_seconds()
        self._node.say(peer, CHANNEL, Pausing(for_s=min(LONGEST_S, max(0.0, for_s))))


def readable(seconds: float) -> str:
    """Return a time for people, such as `9 h 30 min`."""
    minutes = round(seconds / 60)
    days, hours = divmod(minutes // 60, 24)
    parts = [(days, "d"), (hours, "h"), (minutes % 60, "min")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "a moment"
