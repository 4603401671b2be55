"""This node's training: its rounds, its time, and the step correction for a node slower or faster than others.

Before the first round a node waits until all members are connected, or joins a federation that has moved on.

A federation that has yet to begin and one that is over look alike, so a node whose federation has not ended waits
forever. Joining means finding out whether the others have moved on, and which models to start from. Where b neighbors
may lie, more than b must say that they have moved on, and the median is over more than 2 b replicas: liars choose none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_low

from p2pfl.core.edge import Edge, announce, is_accompanied
from p2pfl.core.events import Alarm, Effect
from p2pfl.core.limits import Repeats
from p2pfl.core.neighbor import ToldLifetimes
from p2pfl.core.settings import NEVER, Best, Facts, Settings

LEAST_AT_ONCE = 5
"""After its own training a node goes on at once for so many rounds, or a tenth of those asked: of equals none idles."""
SPREAD_ROUNDS, SPREAD = 10, 10.0
"""Then it trains so many more, ever farther apart: its data count until nodes ten times slower are done."""
NEWEST = 0.2
"""The weight of the latest round in this node's pace."""


def begins_beyond(number: int, asked: int) -> float:
    """Return when round `number` (from 1) beyond those `asked` may begin, in training times; NEVER if it may not."""
    spread = number - max(LEAST_AT_ONCE, asked // 10)
    if spread > SPREAD_ROUNDS:
        return NEVER
    return 1.0 if spread <= 0 else float(SPREAD ** (spread / SPREAD_ROUNDS))


@dataclass(slots=True, eq=False, repr=False)
class Training:
    """One node's training; rounds and time taken over from others count as its own."""

    edges: Mapping[int, Edge]
    facts: Facts
    settings: Settings
    elapsed_before_s: float
    """How long the node had trained before this process started, in seconds."""
    began_at: float | None = None
    """When training began in this process."""
    taken_over: int = 0
    """How many rounds the node took over from others."""
    round_from: float = 0.0
    """When the latest round began."""
    pace_from: float | None = None
    """When the time began that the pace counts: when the first round began, or when the previous one ended."""
    own_pace_s: float | None = None
    """This node's pace, in seconds per local step."""
    accompanied: bool = True
    """True if a neighbor was connected when the current round began."""
    failed_rounds: int = 0
    best: Best | None = None
    """The best figure of the node's rounds, if early stopping watches one."""
    refused_until: float = 0.0
    """The time before which a refused round is not retried."""
    completed_rounds: int | None = None
    """How many rounds the node had to train, once it has."""
    completed_s: float = 0.0
    """How long it had trained by then."""
    out_of_budget: str = ""
    """The reason why the node may train no more even if rounds are left; empty if it may."""

    def begin(self, now: float) -> bool:
        """Note the start of training; return True only the first time."""
        if self.began_at is not None:
            return False
        self.began_at = now
        return True

    def begin_round(self, now: float, *, accompanied: bool) -> None:
        self.round_from = now
        self.pace_from = now if self.pace_from is None else self.pace_from
        self.accompanied = accompanied

    def correction(self, steps: int, waited_s: float, now: float) -> float:
        """Return rho = clip((T_i/T_ref)(H_ref/H_i), 1/kmax, kmax) for a round that ends now and waited `waited_s`."""
        facts, profile, limit = self.facts, self.settings.profile, self.settings.speed_limit
        if self.pace_from is not None and steps > 0:
            pace_s, before_s = (now - self.pace_from - waited_s) / steps, self.own_pace_s
            own_s = pace_s if before_s is None else (1 - NEWEST) * before_s + NEWEST * pace_s
            facts.pace_s = profile.told_pace_s(own_s, own_s - (before_s or 0.0), facts.pace_s)
            self.own_pace_s = own_s
        self.pace_from = now
        if limit <= 1.0 or not facts.pace_s or not self.own_pace_s:
            return 1.0
        open_edges = (edge.exchange.weighing for edge in self.edges.values() if edge.is_open)
        neighbors_s = (weighing.report.pace_s for weighing in open_edges if weighing.report)
        usual_s = profile.usual_pace_s(self.own_pace_s, facts.pace_s, neighbors_s)
        return min(limit, max(1.0 / limit, self.own_pace_s / usual_s))

    def take_over(self, rounds: int | None, elapsed_s: float | None) -> None:
        """Continue from the progress of the neighbors whose model this node has taken; None keeps its own count."""
        self.best = None
        if rounds is not None:
            self.taken_over = rounds - self.facts.rounds
            self.facts.rounds = self.facts.trained = rounds
        if elapsed_s is not None:
            self.elapsed_before_s, self.facts.trained = elapsed_s, int(elapsed_s)

    def look_at(self, figure: float | None) -> None:
        """Note the figure of the round just trained. Once patience has run out, no figure changes anything."""
        stop, rounds = self.settings.stop, self.facts.rounds
        if stop is None or figure is None or stop.is_out(self.best, rounds):
            return
        if stop.is_better(figure, self.best):
            self.best = Best(figure, rounds + 1)

    def enough(self, now: float) -> str | None:
        """Return the reason why this node has done all the training it had to or may do; None if it has not."""
        settings = self.settings
        if self.out_of_budget:
            return self.out_of_budget
        if settings.rounds is not None and self.facts.rounds >= settings.rounds:
            return f"{settings.rounds} rounds are done"
        if settings.rounds is None and self.elapsed_s(now) >= (settings.time_s or 0.0):
            return f"it has trained for {settings.time_s or 0.0:g} s"
        stop = settings.stop
        return None if stop is None else stop.why(self.best, self.facts.rounds, self.elapsed_s(now))

    def note_completed(self, now: float, *, completed: bool) -> None:
        """Note whether training is complete. Where `rounds` end training, those beyond them count through a restart."""
        if not completed:
            self.completed_rounds = None
        elif self.completed_rounds is None:
            self.completed_rounds = min(self.facts.rounds, self.settings.rounds or self.facts.rounds)
            self.completed_s = self.elapsed_s(now)

    def next_at(self, now: float) -> float:
        """Return when a node that has completed training may train again; NEVER if it only mixes from now on."""
        asked, how = self.completed_rounds, self.settings.when_through
        if self.out_of_budget or how == "mix":
            return NEVER
        if how == "train-on" or asked is None:
            return now
        multiple = begins_beyond(self.facts.rounds - asked + 1, asked)
        return NEVER if multiple == NEVER else now + max(0.0, self.completed_s * multiple - self.elapsed_s(now))

    def elapsed_s(self, now: float) -> float:
        """Return the seconds trained; rounds taken over are assumed to have taken as long as the node's own."""
        elapsed_s = self.elapsed_before_s + (0.0 if self.began_at is None else now - self.began_at)
        if not self.taken_over:
            return elapsed_s
        return elapsed_s * self.facts.rounds / max(1, self.facts.rounds - self.taken_over)

    def note(self, now: float) -> None:
        """Update the progress that others see."""
        in_rounds = self.settings.rounds is not None
        self.facts.trained = self.facts.rounds if in_rounds else int(self.elapsed_s(now))


JOIN_ROUNDS = 3
JOIN_WAIT_S = 10.0
LEAST_JOIN_ROUND_S = 0.1
MOVED_ON = 2


RESUME_WAIT_S = 3.0


@dataclass(slots=True, eq=False, repr=False)
class Beginning:
    """The wait for all neighbors, and the attempt to join a federation that has moved on.

    `repeats` says when to tell neighbors again where this node stands; `fresh` means that the disk is empty. `rounds`
    counts the rounds that filled replicas. `resume_point` is where a node that joins continues, in rounds or seconds.
    """

    edges: Mapping[int, Edge]
    facts: Facts
    settings: Settings
    told_lifetimes: ToldLifetimes
    repeats: Repeats
    fresh: bool
    rounds: int = 0
    resume_point: tuple[int | None, float | None] = (None, None)
    awaited: Edge | None = None
    """An edge that keeps this node on its level; the next `wait` looks at it first."""
    alone_is_reported: bool = False

    def wait(self, now: float, since: float) -> list[Effect] | None:
        """Return what to send to the neighbors, awaited since `since`; None if it is time to begin.

        The level is 0 until all neighbors are connected, then one more than the lowest level among them: at level h,
        every node within h - 1 hops has all its neighbors. Otherwise a node whose neighbors came early would be many
        rounds ahead of the others before they start.
        """
        if now >= since + self._patience_s(now, since):
            return None if is_accompanied(self.edges) else self._wait_alone(now)
        if self._is_held_back():
            return announce(self.edges) if self.repeats.due(now) else []
        levels = (edge.progress.level for edge in self.edges.values() if not edge.line.is_shut)
        level = 1 + min(levels, default=self.settings.hops)
        if level >= self.settings.hops:
            return None
        self.facts.level = int(level)
        self.repeats.restart(now)
        return announce(self.edges)

    def due_at(self, now: float, since: float) -> float:
        """Return when `wait` must be called next."""
        ends_at = since + self._patience_s(now, since)
        return self.repeats.next_at if now >= ends_at else min(ends_at, self.repeats.next_at)

    def end(self) -> None:
        self.facts.level = None
        self.awaited = None

    def _patience_s(self, now: float, since: float) -> float:
        """Return how long to wait for all neighbors, in seconds; not long if the federation is already under way."""
        wait_s = self.settings.start_wait_s
        short_s = min(wait_s, RESUME_WAIT_S)
        if now < since + short_s:
            return short_s
        if self.facts.rounds == 0:
            return short_s if self.moved_on() else wait_s
        # Even if all connected neighbors have finished, one that has not may still come; finished ones linger.
        return min(wait_s, max(short_s, self.settings.linger_s / 2)) if self.moved_on() else short_s

    def _wait_alone(self, now: float) -> list[Effect]:
        self.repeats.due(now)
        if self.alone_is_reported:
            return []
        self.alone_is_reported = True
        text = "no neighbor is connected: training starts once one is, and dialing continues"
        return [Alarm(kind="waiting-alone", peer=None, text=text)]

    def _is_held_back(self) -> bool:
        """Return True if some neighbor keeps this node on its level."""
        level = self.facts.level or 0
        if self.awaited is not None and is_behind(self.awaited, level):
            return True
        self.awaited = next((edge for edge in self.edges.values() if is_behind(edge, level)), None)
        return self.awaited is not None

    # -- joining ----------------------------------------------------------------------------------------------------

    def moved_on(self) -> bool:
        """Return True if the others have moved on: they remember this node, or have trained without it.

        An edge beyond its first incarnation is a sign of a lost disk, even after a crash while joining. The others have
        also moved on if this node comes back in the middle of its rounds when all connected neighbors have finished:
        its old model would only set back their final ones.
        """
        if self.facts.rounds:
            return self._is_last()
        late = MOVED_ON if self.fresh else float("inf")
        telling = sum(
            edge.is_open and (edge.exchange.record.incarnation > 0 or (edge.progress.first_heard or 0) >= late)
            for edge in self.edges.values()
        )
        return telling >= self.settings.profile.words_needed

    def join(self) -> list[Effect]:
        self.facts.joining = True
        return [] if self.facts.rounds else self.told_lifetimes.claim_another()

    def _is_last(self) -> bool:
        settings = self.settings
        if settings.rounds is not None and self.facts.rounds >= settings.rounds:
            return False
        there = [edge for edge in self.edges.values() if edge.is_open]
        return len(there) >= settings.profile.words_needed and all(edge.progress.done for edge in there)

    def find_resume_point(self, sources: tuple[int, ...]) -> tuple[int | None, float | None]:
        """Return the rounds or seconds from which a node that never trained continues: the sources' lower median."""
        if self.facts.rounds:
            return None, None
        trained = median_low(self.edges[peer].progress.trained for peer in sources)
        settings = self.settings
        if not trained:
            return self.resume_point
        if settings.rounds is not None:
            self.resume_point = min(trained, settings.rounds), None
        else:
            self.resume_point = None, min(float(trained), settings.time_s or 0.0)
        return self.resume_point

    def sources(self, *, late: bool) -> tuple[int, ...]:
        """Return the neighbors to start from the median of: those with filled replicas; none while more may come."""
        live = [edge for edge in self.edges.values() if edge.is_open]
        done = {edge.peer: min(edge.exchange.record.seq, edge.service.exchanges) for edge in live}
        filled = tuple(peer for peer in done if done[peer] >= self.settings.fragments.get(peer, JOIN_ROUNDS))
        enough = (late or len(filled) == len(live)) and len(filled) >= self.settings.profile.neighbors_needed
        return filled if enough else ()


def is_behind(edge: Edge, level: int) -> bool:
    """Return True if the neighbor is not connected, or has not reached that level."""
    return not edge.line.is_shut and (not edge.is_open or edge.progress.level < level)
