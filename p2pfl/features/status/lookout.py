"""Check once a second for problems that no single part of a node can see.

These are rounds without neighbors, a growing loss, and a disk that fills up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from p2pfl.core.course import Course
from p2pfl.core.facts import Phase
from p2pfl.errors import StorageError
from p2pfl.learn.losses import DRIVEN, NOISY, Growth, Losses
from p2pfl.node.feed import Feed

ROUNDS_ALONE = 10
ALONE_S = 60.0
"""The number of consecutive rounds without a neighbor, and the minimum time they must span, that raise an alarm."""
DISK_EVERY_S = 30.0


@dataclass(slots=True, eq=False, kw_only=True)
class Lookout:
    """The checks of one node.

    `raise_alarm` takes kind, member and text. `room_bytes` is the free space on the disk, `snapshot_bytes` the space
    that a snapshot needs.
    """

    core: Course
    feed: Feed
    raise_alarm: Callable[[str, int | None, str], None]
    room_bytes: Callable[[], float]
    snapshot_bytes: int
    missing: Callable[[float], int]
    """Returns the number of members that are currently not heard."""
    is_excused: Callable[[int], bool] = lambda peer: False  # noqa: ARG005 - nobody pauses
    """Returns True if a neighbor has said that it would be away."""
    losses: Losses = field(default_factory=Losses)
    """The losses of the node's own rounds and of the tests."""
    away: int = 0
    """The most members that were away at a time since the loss began to grow."""
    explained: bool = False
    """True if a line has explained why the loss grows, without an alarm."""
    rounds: int = 0
    alone: int = 0
    in_a_row: int = 0
    """The number of consecutive rounds trained without a neighbor."""
    alone_since: float | None = None
    disk_at: float = float("-inf")

    def look(self, now: float) -> None:
        self.feed.expire()
        self._look_for_company(now)
        self._look_at_loss(now)
        if now >= self.disk_at + DISK_EVERY_S:
            self.disk_at = now
            self._look_for_room()

    def _look_for_company(self, now: float) -> None:
        facts = self.core.facts
        rounds, alone = facts.rounds - self.rounds, facts.alone - self.alone
        self.rounds, self.alone = facts.rounds, facts.alone
        if rounds > alone or (self.core.phase is not Phase.WAITING and self._is_accompanied()):
            self.in_a_row, self.alone_since = 0, None
            self.feed.settle("not-alone", None)
            return
        self.in_a_row += alone
        if self.in_a_row and self.alone_since is None:
            self.alone_since = now
        alone_s = 0.0 if self.alone_since is None else now - self.alone_since
        if self.in_a_row >= ROUNDS_ALONE and alone_s >= ALONE_S:
            text = f"{self.in_a_row} rounds were trained without any of the {len(self.core.peers)} listed neighbors"
            self._raise_alarm("training-alone", text)

    def _is_accompanied(self) -> bool:
        peers = self.core.peers
        return bool(self.core.connected) or (bool(peers) and all(map(self.is_excused, peers)))

    def _look_at_loss(self, now: float) -> None:
        """While the loss grows, raise an alarm or log an explanation once.

        Members that were away during that time explain it, even after their return.
        """
        growth = self.losses.growth
        if growth is None:
            self.feed.settle("loss-back", None)
            self.away, self.explained = 0, False
            return
        self.away = max(self.away, self.missing(now), len(self.core.peers) - len(self.core.connected))
        if growth.reason == NOISY:
            self._raise_alarm("noise-prevails", growth.text)
        elif self._is_driven(growth):
            self._raise_alarm("loss-grows", growth.text)
        elif not self.explained:
            self.explained = True
            self._explain(growth.text)

    def _is_driven(self, growth: Growth) -> bool:
        return self.feed.stands("loss-grows", None) or growth.is_lost or (growth.reason == DRIVEN and not self.away)

    def _explain(self, text: str) -> None:
        """Log why the loss grows, without an alarm: members are away and so are their data, or the node overfits its
        rows.
        """
        if self.away:
            who = "a member is" if self.away == 1 else f"{self.away} members are"
            self.feed.tell("forgets", None, f"{text}: {who} away, and their data are missing")
        else:
            self.feed.tell("overfits", None, f"{text}, while the model fits the node's own rows better and better")

    def _raise_alarm(self, kind: str, text: str) -> None:
        """Raise an alarm, or update the text of the active one."""
        if not self.feed.reword(kind, None, text):
            self.raise_alarm(kind, None, text)

    def _look_for_room(self) -> None:
        try:
            room = self.room_bytes()
        except StorageError:
            return  # the store reports it when it matters
        if room >= self.snapshot_bytes:
            if self.feed.settle("disk-roomy", None):
                self.feed.tell("disk-roomy", None, "there is space for another snapshot again")
        else:
            text = f"{room:,.0f} bytes are left on the volume of the state, a snapshot takes {self.snapshot_bytes:,}"
            self._raise_alarm("disk-low", text)
