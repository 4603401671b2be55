"""Checks that need a view of the whole node: problems that no part of it sees, news of other members, and silence.

Problems are rounds without neighbors, a growing loss, a disk that fills up and a board that fails; they are looked for
once a second.
Other members join, finish or start over, are no longer heard, or run different software: their rows show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from p2pfl.core.core import Algorithm
from p2pfl.core.limits import TokenBucket
from p2pfl.core.settings import Phase
from p2pfl.errors import StorageError
from p2pfl.features.status.board import BOARD_ALARMS
from p2pfl.features.status.spread import OVER, VitalsRow
from p2pfl.learn.metrics import DRIVEN, NOISY, Losses, Measure
from p2pfl.limits import WATCHDOG_LINES
from p2pfl.node.status import SILENT_S, Feed
from p2pfl.reporting.alarms import AlarmText
from p2pfl.reporting.vitals import Vitals, scores

ALARMS: Mapping[str, AlarmText] = {
    **BOARD_ALARMS,
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


STARTING_S = 60.0
"""A member that appears within so many seconds counts as present from the start; longer if rows are rare."""
ROUNDS_A_KILL_LOSES = 10
"""A process that is killed may have reported this many rounds that its log does not have yet."""
LINES_PER_S = 1 / 300
UNHEARD_LOOKS = round(SILENT_S)
"""A neighbor with a session counts as silent after this many checks without a byte."""
GONE_LOOKS = 2
"""A session counts as closed after this many checks without one: a renewed session is back at once."""
ROUNDS_ALONE = 10
ALONE_S = 60.0
"""The number of consecutive rounds without a neighbor, and the minimum time they must span, that raise an alarm."""
DISK_EVERY_S = 30.0


@dataclass(slots=True, eq=False, kw_only=True)
class MemberNews:
    """Reports about other members. `raise_alarm` takes kind, member and text; `software` and `began_at` belong to this
    node.

    Times are monotonic.
    """

    core: Algorithm
    feed: Feed
    raise_alarm: Callable[[str, int | None, str], None]
    software: str
    began_at: float
    measures: Callable[[], Sequence[Measure]] = tuple
    """The measures of the task, the main one first; empty while they are unknown."""
    quiet: set[int] = field(default_factory=set)
    """The members whose row is overdue."""
    left_out: int = 0
    lines: TokenBucket = field(
        default_factory=lambda: TokenBucket(LINES_PER_S, tokens=WATCHDOG_LINES, burst=WATCHDOG_LINES)
    )

    def hear(self, row: VitalsRow, before: VitalsRow | None, now: float, *, starting_s: float = STARTING_S) -> None:
        """Report a member's new row. Until `starting_s` after the start, members do not count as having joined."""
        member, vitals = row.vitals.member, row.vitals
        if row.source is None:
            return
        if member in self.quiet:
            self.quiet.discard(member)
            self._mention("back", member, f"is back, in round {vitals.rounds}", now)
        if before is None:
            if now - self.began_at > starting_s and vitals.phase not in OVER:
                self._mention("joined", member, f"is seen for the first time, in round {vitals.rounds}", now)
        elif before.vitals.life != vitals.life:
            self._mention("new-life", member, "has started again, without what it had not stored", now)
        if vitals.phase in OVER and (before is None or before.vitals.phase != vitals.phase) and now > self.began_at:
            kind = "finished" if vitals.phase == "finished" else "left"
            self._mention(kind, member, f"after round {vitals.rounds}{self._score(vitals)}", now)
        self._compare(member, vitals.software)

    def _score(self, vitals: Vitals) -> str:
        measures = self.measures()
        name, value = next(iter(scores(vitals, measures).items()))
        label = measures[0].label if measures else name
        return "" if value is None else f", {label} {value:.3f}"

    def _compare(self, member: int, software: str) -> None:
        text = f"it runs p2pfl {software}, this node {self.software}"
        if software == self.software:
            self.feed.settle("software-agrees", member)
        elif not self.feed.stands("software-differs", member):
            self.raise_alarm("software-differs", member, text)

    def hear_own(self, signed: Vitals, own: Vitals) -> None:
        """Compare this node's row with one that an earlier process of it has signed and a neighbor still has."""
        if signed.life == own.life and signed.rounds > own.rounds + ROUNDS_A_KILL_LOSES:
            text = f"it has signed a report of round {signed.rounds}, but its state on disk ended at round {own.rounds}"
            if not self.feed.reword("state-behind", None, text):
                self.raise_alarm("state-behind", None, text)

    def forget(self, member: int) -> None:
        """Forget a former member."""
        self.quiet.discard(member)
        self.feed.forget(member)

    def miss(self, member: int, age_s: float, now: float) -> None:
        """Report a member that has been silent for longer than expected."""
        if member not in self.quiet:
            self.quiet.add(member)
            self._mention("not-heard", member, f"its last report is {age_s:.0f} s old", now)

    def _mention(self, kind: str, member: int, text: str, now: float) -> None:
        """Log a line about a member.

        Neighbors have their own lines. If hundreds of members finish together, a few lines are enough.
        """
        if member in self.core.peers and kind in ("back", "joined", "not-heard"):
            return
        if self.lines.take(now) > 0.0:
            self.left_out += 1
            return
        more = f" (and {self.left_out} earlier events of other members)" if self.left_out else ""
        self.left_out = 0
        self.feed.tell(kind, member, text + more)


@dataclass(slots=True, eq=False, kw_only=True)
class Watchdog:
    """The checks of one node.

    `raise_alarm` takes kind, member and text. `room_bytes` is the free space on the disk, `snapshot_bytes` the space
    that a snapshot needs.
    """

    core: Algorithm
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
    board: Callable[[], Mapping[str, str]] = dict
    """Returns the kinds of alarms about this machine that hold, with their texts."""
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
        self._look_for_neighbors(now)
        self._look_at_loss(now)
        if now >= self.disk_at + DISK_EVERY_S:
            self.disk_at = now
            self._look_for_room()
            for kind, text in self.board().items():
                self._raise_alarm(kind, text)

    def _look_for_neighbors(self, now: float) -> None:
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
        elif self.feed.stands("loss-grows", None) or growth.is_lost or (growth.reason == DRIVEN and not self.away):
            self._raise_alarm("loss-grows", growth.text)
        elif not self.explained and self.away:
            who = "a member is" if self.away == 1 else f"{self.away} members are"
            self.feed.tell("forgets", None, f"{growth.text}: {who} away, and their data are missing")
            self.explained = True
        elif not self.explained:
            text = f"{growth.text}, while the model fits the node's own rows better and better"
            self.feed.tell("overfits", None, text)
            self.explained = True

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


class Hearing:
    """The neighbors from which bytes arrive, by checking their sessions about once a second.

    A silent session stays open until `Limits.silence_s`, because a slow line may take that long for one encrypted
    chunk. Meanwhile the chunk's bytes keep arriving, and they count here. Checks are counted instead of seconds, so
    that a process that was stopped for a minute does not count a minute of silence. `came` returns the number of a
    neighbor's session and the bytes received over it, or None if there is no session.
    """

    def __init__(self, came: Callable[[int], tuple[int, int] | None]) -> None:
        self._came = came
        self._seen: dict[int, tuple[tuple[int, int] | None, int, int]] = {}
        """What `came` last returned of each neighbor, and the checks without a byte, and without a session."""

    def look(self, neighbors: Iterable[int]) -> None:
        """Check all sessions; call this about once a second."""
        before, self._seen = self._seen, {}
        for peer in neighbors:
            now, (latest, silent, away) = self._came(peer), before.get(peer, (None, 0, GONE_LOOKS))
            if now is None:
                self._seen[peer] = latest, silent, away + 1
            else:
                self._seen[peer] = now, silent + 1 if now == latest else 0, 0

    @property
    def live(self) -> frozenset[int]:
        """Return the neighbors with a session, silent or not."""
        return frozenset(peer for peer, (_, _, away) in self._seen.items() if away < GONE_LOOKS)

    @property
    def unheard(self) -> frozenset[int]:
        """Return the neighbors with a session over which nothing has arrived for long."""
        return frozenset(peer for peer in self.live if self.silent_s(peer) >= UNHEARD_LOOKS)

    def silent_s(self, peer: int) -> float:
        """Return the seconds since data arrived over the session with a neighbor, if there is or lately was one."""
        now, (latest, silent, _) = self._came(peer), self._seen.get(peer, (None, 0, 0))
        is_new = now is not None and latest is not None and now[0] != latest[0]
        return 0.0 if is_new else float(silent)
