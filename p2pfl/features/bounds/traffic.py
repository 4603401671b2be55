"""The bounds of one node, as `hours` and `month_gb` in its file say: outside them it tells its neighbors, ends its
sessions, and trains no round, which would only lead its model away from theirs.

Neighbors that were told raise no alarm, and hardly dial until it is over. Times of day are those of the machine's own
clock. `max_kbit_s` is kept by the network layer (`net.limits`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from p2pfl.errors import StorageError
from p2pfl.foreign import UNREADABLE
from p2pfl.limits import CHANNEL_AT_ONCE, CHANNEL_PER_S, MOST_MONTHS
from p2pfl.net.extensions import ExtensionChannel, HandledChannel
from p2pfl.node.feature import Attached, Feature, NodeView
from p2pfl.node.learner_runner import Answer, RoundPlan, Wait
from p2pfl.reporting.status import NodeResult
from p2pfl.storage.disk import replace_file

FILE_NAME = "traffic.json"
GB = 1e9
DAY = timedelta(days=1)
TOTAL = "*"
"""The name under which the bytes with all neighbors together are counted; no node can have it."""
SOON_S, LATER_S = 5.0, 60.0
"""The time between two writes of the count: while there is much traffic, and else."""
LONGEST_S = 32 * DAY.total_seconds()
"""The longest pause that a neighbor may announce, and the longest time without it before it is missed again."""
FAREWELL_S = 2.0
"""The time for neighbors to hear of a pause before the sessions end."""
PAUSE_S = 60.0
"""The time for which no session opens after a look; the looks go on in a pause."""
BACK_S = 10.0
"""The age of a session from which a neighbor that paused counts as back: it may end one that comes too early."""
TELL_AGAIN_S = 600.0
"""The shortest time between two log lines about one neighbor's pauses."""
ASK_AGAIN = Wait(1.0)

Months = dict[str, dict[str, Annotated[int, Meta(ge=0)]]]

log = logging.getLogger("p2pfl")


class Pausing(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """The sender ends its sessions with the receiver until `for_s` seconds from now: its own bounds say so."""

    for_s: Annotated[float, Meta(ge=0.0, le=LONGEST_S)]


CHANNEL = ExtensionChannel(
    "pause", Pausing, most_bytes=32, per_s=CHANNEL_PER_S["pause"], at_once=CHANNEL_AT_ONCE["pause"]
)


def closed_until(hours: str, now: datetime) -> datetime | None:
    """Return when the hours `HH:MM-HH:MM` begin again; None within them. If the end is earlier, they span midnight."""
    start, end = (time.fromisoformat(part) for part in hours.split("-"))
    clock = now.time()
    within = clock >= start or clock < end if end < start else start <= clock < end
    begin = datetime.combine(now.date(), start)
    return None if within else begin if begin > now else begin + DAY


def next_month(now: datetime) -> datetime:
    """Return the first moment of the next month."""
    return datetime.combine((now.replace(day=28) + 4 * DAY).replace(day=1).date(), time())


class MonthCount:
    """The bytes of this month, kept in a file of the node's folder.

    A crash forgets a minute at most, and of much traffic five seconds. The counts of other months stay, because a clock
    that is wrong for a while must not make a month begin anew.
    """

    def __init__(self, folder: Path, bound_bytes: float, now: datetime) -> None:
        self._path, self._bound = folder / FILE_NAME, bound_bytes
        self._process = 0
        self._written_at, self._unwritten = float("-inf"), 0
        self._months: Months = {}
        self._month = _name(now)
        try:
            self._months = msgspec.json.decode(self._path.read_bytes(), type=Months)
        except FileNotFoundError:
            pass
        except (OSError, *UNREADABLE) as error:
            log.warning("%s cannot be read: the bytes of this month are counted anew: %s", self._path, error)

    @property
    def used(self) -> int:
        return self._months.get(self._month, {}).get(TOTAL, 0)

    def add(self, process_bytes: int, now: datetime, clock_s: float) -> None:
        """Count what this process has sent and received so far, and write it from time to time."""
        grown, self._process = max(0, process_bytes - self._process), process_bytes
        self._month = _name(now)
        self._months[self._month] = {TOTAL: self.used + grown}
        self._unwritten += grown
        is_much = self._unwritten >= self._bound / 1000
        if self._unwritten and clock_s - self._written_at >= (SOON_S if is_much else LATER_S):
            self.write(clock_s)

    def write(self, clock_s: float) -> None:
        """Write the counts. A disk that refuses gets them later."""
        for month in [month for month in self._months if month != self._month][: 1 - MOST_MONTHS]:
            del self._months[month]
        try:
            replace_file(self._path, [msgspec.json.encode(self._months)])
        except StorageError:
            return
        self._written_at, self._unwritten = clock_s, 0

    def closed_until(self, now: datetime) -> datetime | None:
        """Return when the next month begins if this one is used up, else None."""
        return next_month(now) if self.used >= self._bound else None


def _name(now: datetime) -> str:
    return f"{now:%Y-%m}"


@dataclass(slots=True)
class Pause:
    """A pause of this node."""

    until: datetime
    why: str
    since: float
    """The time at which it began, on the node's clock."""


@dataclass(slots=True)
class NeighborPause:
    """The pauses that a neighbor has announced; times are on the node's clock."""

    first_at: float
    """The time of its first announcement since it was last here."""
    back_at: float
    told_at: float
    """The time of the latest log line about it."""


class BoundsFeature(Feature):
    name = "bounds"

    def attach(self, node: NodeView) -> Attached | None:
        own = node.setup().node.network
        return TrafficBounds(node) if own.hours is None and own.month_gb is None else PausingNode(node)


class PauseTalk:
    """The handler of the channel."""

    def __init__(self, bounds: TrafficBounds) -> None:
        self.opened, self.closed, self.hear = bounds.meet, bounds.miss, bounds.hear


class TrafficBounds(Attached):
    """The bounds of one running node, and what its neighbors have said about theirs."""

    def __init__(self, node: NodeView, now: Callable[[], datetime] = datetime.now) -> None:
        self._node, self._now = node, now
        setup = node.setup()
        own = self._own = setup.node.network
        self._month = None if own.month_gb is None else MonthCount(setup.node.state_dir, own.month_gb * GB, now())
        self._near: dict[int, float] = {}
        """The neighbors with a session in which the channel is open, and when it opened; infinite if they pause."""
        self._absent: dict[int, NeighborPause] = {}
        self._pause: Pause | None = None
        self._back_at = 0.0
        """The time at which all neighbors should have sessions again after this node's own pause."""
        node.presence.is_excused = self.is_excused

    def channels(self) -> tuple[HandledChannel, ...]:
        return (HandledChannel(channel=CHANNEL, handler=PauseTalk(self)),)

    # -- of the neighbors ---------------------------------------------------------------------------------------------

    def meet(self, peer: int) -> None:
        self._near[peer] = self._node.clock()
        if self._pause is not None:
            self._tell([peer], self._pause.until)

    def miss(self, peer: int) -> None:
        self._near.pop(peer, None)

    def hear(self, peer: int, message: Pausing) -> None:
        now = self._node.clock()
        absence = self._absent.setdefault(peer, NeighborPause(now, now, float("-inf")))
        absence.back_at = now + message.for_s + PAUSE_S
        self._near[peer] = float("inf")
        self._node.network.spare(peer, message.for_s)
        if now - absence.told_at >= TELL_AGAIN_S:
            absence.told_at = now
            until = self._now() + timedelta(seconds=message.for_s)
            self._node.feed.tell("neighbor-pauses", peer, f"until {until:%Y-%m-%d %H:%M}, as its own bounds say")

    def is_excused(self, peer: int) -> bool:
        """Return True if a neighbor has said that it pauses, or this node does, and it may not be back yet."""
        absence, now = self._absent.get(peer), self._node.clock()
        if self._pause is not None or now < self._back_at:
            return True
        return absence is not None and now < min(absence.back_at, absence.first_at + LONGEST_S)

    # -- of this node -------------------------------------------------------------------------------------------------

    def look(self) -> None:
        now, clock_s, own = self._now(), self._node.clock(), self._own
        for peer in [*self._absent]:
            if clock_s - self._near.get(peer, clock_s) >= BACK_S or peer not in self._node.core.peers:
                del self._absent[peer]  # it is back, or no neighbor any more
                self._node.network.spare(peer, 0.0)
        bounds = []
        if own.hours is not None and (until := closed_until(own.hours, now)) is not None:
            bounds.append((until, f"its hours are {own.hours}"))
        if self._month is not None:
            traffic = self._node.status.counters.total
            self._month.add(traffic.bytes_sent + traffic.bytes_received, now, clock_s)
            if (until := self._month.closed_until(now)) is not None:
                bounds.append((until, f"{own.month_gb:g} GB of this month are used up"))
        if bounds:
            self._hold(*max(bounds))
        elif self._pause is not None:
            self._go_on()

    def status(self) -> Mapping[str, Any]:
        own, shown = self._own, dict[str, Any]()
        if own.max_kbit_s is not None:
            shown["max_kbit_s"] = own.max_kbit_s
        if own.hours is not None:
            shown["hours"] = own.hours
        if self._month is not None:
            shown |= {"month_gb": own.month_gb, "month_used_gb": round(self._month.used / GB, 3)}
        if self._pause is not None:
            until = self._pause.until.isoformat(timespec="minutes")
            shown |= {"paused_until": until, "paused_because": self._pause.why}
        neighbors: dict[str, dict[str, Any]] = {}
        for peer, absence in self._absent.items():
            back = self._now() + timedelta(seconds=absence.back_at - self._node.clock())
            name = self._node.setup().federation.members[peer].name
            neighbors[name] = {"says_paused_until": back.isoformat(timespec="minutes")}
        return shown | ({"by_neighbor": neighbors} if neighbors else {})

    async def over(self, result: NodeResult) -> None:  # noqa: ARG002 - whatever it is
        if self._month is not None:
            self._month.write(self._node.clock())

    def _hold(self, until: datetime, why: str) -> None:
        """Begin or continue a pause; sessions end once their other ends have been told."""
        if self._pause is None:
            self._pause = Pause(until, why, self._node.clock())
            self._tell(sorted(self._near), until)
            self._node.feed.tell("pauses", None, f"until {until:%Y-%m-%d %H:%M}: {why}")
        self._pause.until, self._pause.why = until, why
        if self._node.clock() - self._pause.since >= FAREWELL_S:
            self._node.network.pause(PAUSE_S, f"this node pauses: {why}")
        self._node.status.waits_for = self._node.status.waits_for or "paused"

    def _go_on(self) -> None:
        self._pause, self._back_at = None, self._node.clock() + PAUSE_S
        if self._node.status.waits_for == "paused":
            self._node.status.waits_for = ""
        self._node.network.pause(0.0, "")
        self._node.feed.tell("goes-on", None, "the pause is over")

    def _tell(self, peers: Collection[int], until: datetime) -> None:
        for_s = until.timestamp() - self._now().timestamp()  # by the machine's clock, whose hours may shift in between
        for peer in peers:
            self._node.say(peer, CHANNEL, Pausing(for_s=min(LONGEST_S, max(0.0, for_s))))


class PausingNode(TrafficBounds):
    """The bounds of a node that may pause: it begins no round then."""

    def before_round(self, plan: RoundPlan) -> Answer:  # noqa: ARG002 - whatever round it is
        return None if self._pause is None else ASK_AGAIN
