"""A node's figures about itself, for its status, live view and result; its news, standing alarms and log lines.

A session may end and another begin at once, for example when it is renewed, so a neighbor that is back within seconds
does not count as lost. Nor does one that has finished or is in quarantine, nor any while this node's disk refuses
writes.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from p2pfl.aggregate import Scores
from p2pfl.config.model import FederationConfig
from p2pfl.core.core import Algorithm
from p2pfl.core.edge import Edge
from p2pfl.core.events import Alarm
from p2pfl.core.limits import View, pace_setter
from p2pfl.core.settings import Phase
from p2pfl.core.training import is_behind
from p2pfl.engine.engine import Engine
from p2pfl.engine.rounds import neighbor_distance
from p2pfl.learn.figures import own_classes
from p2pfl.learn.interface import device_of
from p2pfl.limits import FIRST_NEIGHBOR_LINES, LATER_NEIGHBOR_LINES, MOST_EVENTS, REASON_BYTES
from p2pfl.net.link import SILENT
from p2pfl.net.transport import Counters, PeerTraffic, clip
from p2pfl.node.engine_thread import EngineThread, Look
from p2pfl.node.learner_runner import LearnerRunner, Moment
from p2pfl.reporting.alarms import ALARMS, BACK, LASTS_S, LOST, OTHER, AlarmText
from p2pfl.reporting.figures import Bearing
from p2pfl.reporting.measures import rounded, rounds_beyond
from p2pfl.reporting.status import (
    ClosedRound,
    MeanAndMax,
    NeighborStatus,
    NodeLine,
    NodeStatus,
    PrivacyStatus,
)
from p2pfl.reporting.vitals import NotableEvent, StandingAlarm

log = logging.getLogger("p2pfl")
notice = logging.getLogger("p2pfl.notice")


@dataclass(slots=True)
class RaisedAlarm:
    """An alarm that has not been settled; times are from the monotonic clock."""

    text: str
    since: float
    last_at: float
    count: int = 1


@dataclass(slots=True, eq=False)
class Feed:
    """The events and standing alarms of one node, on the event loop. `name_of` turns a member index into a name."""

    name_of: Callable[[int], str]
    events: deque[NotableEvent] = field(default_factory=lambda: deque(maxlen=MOST_EVENTS))
    event_count: int = 0
    """The number of events so far."""
    texts: Mapping[str, AlarmText] = field(default_factory=lambda: ALARMS)
    """Texts for each kind of alarm, both those of every node and those of its features."""
    _standing: dict[tuple[str, int | None], RaisedAlarm] = field(default_factory=dict)

    def tell(self, kind: str, peer: int | None, text: str, *, wrong: bool = False, times: int = 1) -> None:
        """Log one notable event, and keep it for the page."""
        place = "" if peer is None else f" ({self.name_of(peer)})"
        more = f" (time {times})" if times > 1 else ""
        (log.warning if wrong else notice.info)("%s%s: %s%s", kind, place, text, more, extra={"kind": kind})
        self.keep(kind, peer, text + more, wrong=wrong)

    def keep(self, kind: str, peer: int | None, text: str, *, wrong: bool = False) -> None:
        """Keep an event for the page only: the log has it in other words."""
        self.event_count += 1
        about = None if peer is None else self.name_of(peer)
        self.events.append(
            NotableEvent(
                number=self.event_count, at=round(time.monotonic(), 1), kind=kind, about=about, text=text, wrong=wrong
            )
        )

    def stand(self, kind: str, peer: int | None, text: str) -> None:
        """Add an alarm to the standing ones, or count it again."""
        if self.reword(kind, peer, text):
            self._standing[kind, peer].count += 1
        else:
            self._standing[kind, peer] = RaisedAlarm(text, since=(now := time.monotonic()), last_at=now)

    def reword(self, kind: str, peer: int | None, text: str) -> bool:
        """Replace the text of a standing alarm, which still holds; return False if it does not stand."""
        alarm = self._standing.get((kind, peer))
        if alarm is not None:
            alarm.text, alarm.last_at = text, time.monotonic()
        return alarm is not None

    def settle(self, event: str, peer: int | None) -> list[str]:
        """End the alarms about that member that this event settles; return their kinds."""
        ended = [key for key in self._standing if key[1] == peer and self.text_of(key[0]).ended_by == event]
        self._drop(ended)
        return [kind for kind, _ in ended]

    def expire(self) -> None:
        """Drop alarms that no event ends and that were not raised again for long. Call about once a second."""
        before = time.monotonic() - LASTS_S
        old = [key for key, alarm in self._standing.items() if alarm.last_at < before]
        self._drop(key for key in old if self.text_of(key[0]).ended_by is None)

    def text_of(self, kind: str) -> AlarmText:
        return self.texts.get(kind, OTHER)

    def _drop(self, keys: Iterable[tuple[str, int | None]]) -> None:
        for key in keys:
            del self._standing[key]

    def forget(self, peer: int) -> None:
        """Forget the alarms about a member that nothing waits for any more."""
        self._drop([key for key in self._standing if key[1] == peer])

    def stands(self, kind: str, peer: int | None) -> bool:
        return (kind, peer) in self._standing

    @property
    def kinds(self) -> list[str]:
        """Kinds of the standing alarms, without duplicates."""
        return list(dict.fromkeys(kind for kind, _ in self._standing))

    def standing(self) -> list[StandingAlarm]:
        return [
            StandingAlarm(
                kind=kind,
                about=None if peer is None else self.name_of(peer),
                text=alarm.text,
                since=round(alarm.since, 1),
                count=alarm.count,
                means=self.text_of(kind).means,
                does=self.text_of(kind).does,
                advice=self.text_of(kind).advice,
            )
            for (kind, peer), alarm in self._standing.items()
        ]


@dataclass(slots=True, kw_only=True)
class Status:
    """Reads the running parts and owns nothing.

    `kept` maps each neighbor to the share of its pull that the rule let through.
    """

    name: str
    federation: str
    rounds: int | None
    core: Algorithm
    runner: LearnerRunner
    counters: Counters
    name_of: Callable[[int], str]
    compressor_of: Callable[[int], str]
    alarms: dict[str, int]
    durability: str
    bearing: Bearing
    kept: Callable[[], Mapping[int, float]]
    likeness: Callable[[], Mapping[int, Scores]]
    features: Callable[[], Mapping[str, Any]] = dict
    """Fields added by features."""
    neighbor_distance: float | None = None
    waits_for: str = ""
    """The cause of a wait at the node's start or end, shown as its phase: a disk that refuses, or the last test."""
    refusal: Callable[[], str | None] = lambda: None
    """The reason why the disk does not accept the state; None while it does."""
    privacy: Callable[[], PrivacyStatus | None] = lambda: None
    over: bool = False
    """True if the model is final."""
    started_at: float = field(default_factory=time.monotonic)

    def full(self) -> NodeStatus:
        """Return all figures, for `GET /status`."""
        bearing, mixing, now = self.bearing, self.core.mixing, time.monotonic()
        held, kept, likeness = self.core.reputations(now), self.kept(), self.likeness()
        counted = mixing if bearing.liars > 0 else None  # with the mean nothing is counted
        return NodeStatus(
            **msgspec.structs.asdict(self.line()),
            federation=self.federation,
            rounds_to_do=self.rounds,
            durability=self.durability,
            samples=self.core.facts.samples,
            alarms=dict(self.alarms),
            failed_rounds=self.core.failed_rounds,
            through=self.core.has_completed,
            ended_by=self.core.ended_by,
            unfinished=[self.name_of(member) for member in self.core.unfinished],
            pace_set_by=self._pace_setter(now),
            rule=bearing.rule,
            liars=bearing.liars,
            liars_borne=bearing.borne,
            neighbors_needed=bearing.needed,
            rounds_unmixed=None if mixing is None else mixing.alone,
            rounds_mixed=None if counted is None else counted.mixed,
            rounds_alone=None if counted is None else counted.alone,
            too_few_neighbors=None if counted is None else counted.too_few,
            neighbors=[
                self._neighbor(edge, held[edge.peer], kept.get(edge.peer), likeness.get(edge.peer), now)
                for edge in self.core.edges.values()
            ]
            or [self._of_line(peer) for peer in sorted(self.core.peers)],
            device=device_of(self.runner.learner),
            through_by=self.core.completed_by(now),
            **self.features(),
        )

    def _pace_setter(self, now: float) -> str | None:
        """Return the neighbor that rounds wait for most, and much longer than for any other."""
        peer = pace_setter({peer: edge.service.patience.used_s(now) for peer, edge in self.core.edges.items()})
        return None if peer is None else self.name_of(peer)

    def line(self) -> NodeLine:
        """Return the short form: one line of a live view, or one point of a history."""
        tested = self.runner.figures.tested
        away = sum(held.quarantined_s > 0 for held in self.core.reputations(time.monotonic()).values())
        return NodeLine(
            node=self.name,
            uptime_s=round(time.monotonic() - self.started_at, 3),
            phase=self.waits_for or self.core.phase.value,
            rounds=self.core.facts.rounds,
            rounds_without_neighbor=self.core.facts.alone,
            rounds_beyond=rounds_beyond(self.core.facts.rounds, self.rounds),
            version=self.core.facts.version,
            accuracy=None if tested is None else tested.score.accuracy,
            test_loss=None if tested is None else tested.score.loss,
            metrics={} if tested is None else dict(tested.score.metrics),
            test_samples=None if tested is None else tested.score.samples,
            intervals={} if tested is None else rounded(tested.score.intervals),
            measures=self.runner.measures,
            tested_round=None if tested is None else tested.moment.rounds,
            tested_version=None if tested is None else tested.moment.version,
            test_is_stale=tested is not None and self._is_outdated(tested.moment),
            loss=self.runner.figures.loss,
            staleness=self.staleness(),
            **_traffic(self.counters.total),
            peers=len(self.core.connected),
            quarantined=away,
            exchanges=self.core.exchanges,
            closing_rounds=self.core.facts.closing_rounds_done,
            neighbor_distance=self.neighbor_distance,
            disk_refuses=self.refusal(),
            privacy=self.privacy(),
        )

    def _is_outdated(self, tested: Moment) -> bool:
        """Return True if a newer model should have been tested: the final one, or the one due while running."""
        if self.over:
            return not tested.final
        return self.core.facts.version - tested.version > self.runner.pace.usual_rounds

    @property
    def heard_neighbors(self) -> list[int]:
        """Neighbors whose current models are known: an old copy from an absent neighbor is not measured."""
        return [peer for peer, edge in self.core.edges.items() if edge.is_heard]

    def staleness(self) -> MeanAndMax | None:
        """Return the mean and maximum staleness of all weighed exchanges; None if rounds are sums."""
        if not self.core.mixes:
            return None
        edges = self.core.edges.values()
        weighed = sum(edge.exchange.weighing.weighed for edge in edges)
        return MeanAndMax(
            mean=sum(edge.exchange.weighing.staleness_sum for edge in edges) / weighed if weighed else 0.0,
            max=max((edge.exchange.weighing.staleness_max for edge in edges), default=0),
        )

    def _of_line(self, peer: int) -> NeighborStatus:
        """Return what there is to say of a neighbor with which no model is mixed."""
        traffic = _traffic(self.counters.peers[peer])
        return NeighborStatus(name=self.name_of(peer), live=peer in self.core.connected, **traffic)

    def _neighbor(
        self, edge: Edge, standing: View, kept: float | None, likeness: Scores | None, now: float
    ) -> NeighborStatus:
        return NeighborStatus(
            name=self.name_of(edge.peer),
            compressor=self.compressor_of(edge.peer),
            **_traffic(self.counters.peers[edge.peer]),
            live=edge.is_open,
            done=edge.progress.done,
            version=edge.progress.version,
            exchanges=edge.service.exchanges,
            staleness=edge.exchange.weighing.staleness,
            exchange_s=edge.service.patience.exchange_s,
            waited_s=round(edge.service.patience.used_s(now), 3),
            resyncs=edge.exchange.record.resyncs,
            kept=kept,
            unlike=None if likeness is None else round(likeness.unlike, 3),
            moves=None if likeness is None else round(likeness.moves, 3),
            standing=standing.score,
            faults=standing.faults,
            latest_fault=standing.latest or None,
            quarantined_s=standing.quarantined_s,
            probation=standing.probation,
            quarantines=standing.quarantines,
        )


def _traffic(traffic: PeerTraffic) -> dict[str, Any]:
    names = ("bytes_sent", "bytes_received", "messages_sent", "messages_received")
    return {name: getattr(traffic, name) for name in names}


LOST_S = 3.0
ALARM_S = 15.0
"""How long a neighbor is absent before there is an alarm, in seconds."""
SILENT_S = 12.0
"""How long nothing arrives in an open session, three heartbeats, before there is the same alarm: a pulled cable."""
FIRST_ALARM_S = 60.0
"""How long a neighbor that has had no session since the start is absent before there is an alarm."""


@dataclass(slots=True)
class Absence:
    """The absence of a neighbor, with or without a session; `since` is on the loop's clock."""

    since: float
    reason: str = ""
    is_open: bool = False
    """True if it has a session, in which nothing arrives."""
    is_logged: bool = False
    alarmed: bool = False


class Presence:
    """Follows sessions as they open and close; `look` is called about once a second."""

    def __init__(
        self,
        core: Algorithm,
        *,
        name_of: Callable[[int], str],
        on_alarm: Callable[[Alarm], None],
        now: float,
        feed: Feed | None = None,
    ) -> None:
        self.core = core
        self.name_of = name_of
        self.on_alarm = on_alarm
        self.feed = feed or Feed(name_of)
        self.silent_s: Callable[[int], float] = lambda peer: 0.0  # noqa: ARG005 - until somebody counts
        """Returns the seconds since any data arrived in the session with a neighbor."""
        self.is_excused: Callable[[int], bool] = lambda peer: False  # noqa: ARG005 - as above
        """Returns True if nobody needs to know that a neighbor is away: it has said that it would be."""
        self.away = {peer: Absence(now) for peer in core.peers}
        self.seen: set[int] = set()
        """Neighbors that have had a session since the start."""
        self._lines: defaultdict[int, int] = defaultdict(int)

    def opened(self, peer: int, now: float) -> None:
        log.info("session with %s is open", self.name_of(peer))
        self._note_back(peer, self.away.pop(peer, None), now)
        self.seen.add(peer)

    def _note_back(self, peer: int, absence: Absence | None, now: float) -> None:
        if absence is not None and (absence.is_logged or absence.alarmed):
            what = "back" if peer in self.seen else "there"
            self._tell(peer, BACK, f"{what} after {now - absence.since:.0f} s")
        self.feed.settle(BACK, peer)

    def ended(self, peer: int, reason: str, now: float) -> None:
        reason = clip(reason, REASON_BYTES)
        log.info("session with %s ended: %s", self.name_of(peer), reason)
        if peer in self.core.peers:
            absence = self.away.setdefault(peer, Absence(now - self.silent_s(peer)))
            absence.reason, absence.is_open = absence.reason or reason, False

    def follow(self, now: float) -> None:
        """Adopt changed neighbors: former ones are no longer missed or remembered, new ones may be missed."""
        edges, peers = self.core.edges, self.core.peers
        self.seen.intersection_update(peers)
        known: dict[int, Any]
        for known in (self.away, self._lines):
            for peer in known.keys() - peers:
                del known[peer]
        for peer, edge in edges.items():
            if edge.line.session is None:
                self.away.setdefault(peer, Absence(now))

    def look(self, now: float) -> None:
        for peer in self.core.peers:
            absence, silent_s = self.away.get(peer), self.silent_s(peer)
            if absence is None and silent_s >= SILENT_S:
                self.away[peer] = Absence(now - silent_s, is_open=True)
            elif absence is not None and absence.is_open and silent_s < SILENT_S:
                self._note_back(peer, self.away.pop(peer), now)
        for peer, absence in sorted(self.away.items()):
            if self.core.may_miss(peer) or self.is_excused(peer) or self.feed.stands(SILENT, peer):
                continue
            away_s, is_open = now - absence.since, absence.is_open
            if peer in self.seen and away_s >= LOST_S and not (absence.is_logged or is_open):
                absence.is_logged = True
                self._tell(peer, "neighbor-away", absence.reason)
            patience_s = SILENT_S if is_open else ALARM_S if peer in self.seen else FIRST_ALARM_S
            if away_s >= patience_s and not absence.alarmed:
                absence.alarmed = True
                since = f"since {absence.reason}" if peer in self.seen else "since this node started"
                text = f"no session for {away_s:.0f} s, {since}"
                if is_open:
                    text = f"nothing has come from it for {away_s:.0f} s, though its session is open"
                self.on_alarm(Alarm(kind=LOST, peer=peer, text=text))

    def _tell(self, peer: int, kind: str, text: str) -> None:
        self._lines[peer] += 1
        if self._lines[peer] <= FIRST_NEIGHBOR_LINES or self._lines[peer] % LATER_NEIGHBOR_LINES == 0:
            self.feed.tell(kind, peer, text)


NONE_YET = "no neighbor is connected yet ({names}): training starts once one is"
SOME_MISSING = "no session yet with {names}; starts without them after at most {wait_s:g} s"
FARTHER_MISSING = (
    "all neighbors are connected, but a member farther away is not, one or more of these: {names}; "
    "starts without it after at most {wait_s:g} s"
)

LEAST_LINE_S = 0.1
LOOKING_SHARE = 0.01
"""The part of a processor for measuring distances to neighbors; of large models not every second."""


class ProgressLines:
    """Calls `on_line` at most ten times a second, and measures the distance to the neighbors now and then.

    `was_stopped` says whether the node was asked to end. If `sketched`, each line has a sketch of the model.
    """

    def __init__(
        self,
        on_line: Callable[[NodeLine], None],
        status: Status,
        thread: EngineThread,
        was_stopped: Callable[[], bool],
        *,
        sketched: bool,
    ) -> None:
        self.on_line = on_line
        self.status = status
        self.thread = thread
        self.was_stopped = was_stopped
        self.sketched = sketched
        runner = status.runner
        is_shown = sketched and "local" not in runner.figures.withheld
        self.unsent_classes = own_classes(runner.learner) if is_shown else None
        """Classes in this node's data, which a launcher on this machine compares; None once they have been sent."""
        self.last_line_at = self.look_again_at = float("-inf")
        self._told_text = ""
        """The latest line about whom the node waits for, without the names."""

    def line(self) -> NodeLine:
        line = self.status.line()
        if self.was_stopped() and line.phase == Phase.FINISHED.value:
            line.phase = "stopped"
        if self.sketched:
            line.sketch = self.status.runner.figures.sketched
            line.classes, self.unsent_classes = self.unsent_classes, None
        return line

    def tell(self) -> None:
        self.on_line(self.line())

    def measured(self) -> None:
        """Send a line after a test of the model."""
        now = time.monotonic()
        if now - self.last_line_at >= LEAST_LINE_S:
            self.last_line_at = now
            self.look()
            self.tell()

    def closed(self, seen: ClosedRound) -> None:
        """Send a line for a closing round; there are few, and they show a launcher how fast the nodes converge."""
        if self.sketched:
            # It may be called after the node has moved on, but never after its last line.
            line = self.line()
            line.phase, line.sketch, line.closed = Phase.CLOSING.value, seen.sketch, seen
            self.on_line(line)

    def look(self) -> None:
        """Measure the distance to the neighbors.

        A float is written in one step, so the threads need no lock.
        """
        if time.monotonic() >= self.look_again_at:
            self.thread.jobs.put(Look(partial(self._see, self.status.heard_neighbors)))

    def _see(self, neighbors: list[int], engine: Engine) -> None:
        began = time.thread_time()
        self.status.neighbor_distance = neighbor_distance(engine.state, neighbors)
        self.look_again_at = time.monotonic() + (time.thread_time() - began) / LOOKING_SHARE

    def say_who_is_missing(self, federation: FederationConfig, own: int) -> None:
        """Log whom the node `own` is waiting for at startup: neighbors, or members that those wait for.

        Each kind of line is logged once, so this may be called every second.
        """
        core = self.status.core
        if core.phase is not Phase.WAITING:
            return
        behind = [edge for edge in core.edges.values() if is_behind(edge, core.facts.level or 0)]
        missing = {edge.peer for edge in behind if not edge.is_open}
        if not behind:
            return
        text = NONE_YET if len(missing) == len(core.edges) else SOME_MISSING if missing else FARTHER_MISSING
        if text != self._told_text:
            self._told_text = text
            awaited = missing or _awaited_by(behind, federation, own)
            names = ", ".join(map(self.status.name_of, sorted(awaited)))
            log.warning("%s", text.format(names=names, wait_s=federation.gossip.start_wait_s))


def _awaited_by(neighbors: Iterable[Edge], federation: FederationConfig, own: int) -> set[int]:
    """Return the members for which these connected neighbors of `own` may be waiting.

    At level h, all members within h - 1 hops have all their neighbors: the missing one is h + 1 hops away.
    """
    pairs = (*federation.edges, *((b, a) for a, b in federation.edges))
    members: set[int] = set()
    for edge in neighbors:
        around = reached = {edge.peer}
        for _ in range(int(edge.progress.level) + 1):
            around = {b for a, b in pairs if a in around} - reached
            reached = reached | around
        members |= around - {own}
    return members - {b for a, b in pairs if a == own} or members
