"""This node's training: its rounds, its time, and the step correction for a node slower or faster than others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from p2pfl.core.early_stopping import Best
from p2pfl.core.edge import Edge
from p2pfl.core.facts import NEVER, Facts
from p2pfl.core.settings import Settings

LEAST_AT_ONCE = 5
"""A node that is through goes on at once for this many rounds, or for a tenth of those that it had to do if that is
more: else nodes of nearly equal speed would idle at the end while the slower ones drag the model to their data.
"""
SPREAD_ROUNDS, SPREAD = 10, 10.0
"""Then it trains so many rounds more, spread over `SPREAD` times its training time, ever farther apart, so that the
data of fast nodes count until nodes ten times slower are through.
"""
NEWEST = 0.2
"""The weight of the latest round in this node's pace."""


def begins_beyond(number: int, asked: int) -> float:
    """Return when the round of this `number` (from 1) beyond those `asked` may begin, as a multiple of the time that
    the node trained until it was through; NEVER if it may not.
    """
    spread = number - max(LEAST_AT_ONCE, asked // 10)
    if spread > SPREAD_ROUNDS:
        return NEVER
    return 1.0 if spread <= 0 else float(SPREAD ** (spread / SPREAD_ROUNDS))


@dataclass(slots=True, eq=False, repr=False)
class Pace:
    """This node's pace, `own_s`: seconds per local step.

    `interval_from` is when the current round began, or when the previous one ended.
    """

    edges: Mapping[int, Edge]
    facts: Facts
    settings: Settings
    interval_from: float | None = None
    own_s: float | None = None

    def begin(self, now: float) -> None:
        if self.interval_from is None:
            self.interval_from = now

    def correction(self, steps: int, waited_s: float, now: float) -> float:
        """Return rho = clip((T_i/T_ref)(H_ref/H_i), 1/kmax, kmax) for a round that ends now and waited `waited_s`."""
        if self.interval_from is not None and steps > 0:
            self._note((now - self.interval_from - waited_s) / steps)
        self.interval_from = now
        limit, own_s = self.settings.speed_limit, self.own_s
        if limit <= 1.0 or not self.facts.pace_s or not own_s:
            return 1.0
        return min(limit, max(1.0 / limit, own_s / self.usual_s(own_s)))

    def usual_s(self, own_s: float) -> float:
        """Return the pace with which this node's own is compared, in seconds per local step."""
        open_edges = (edge.exchange.weighing for edge in self.edges.values() if edge.is_open)
        neighbors_s = (weighing.report.pace_s for weighing in open_edges if weighing.report)
        return self.settings.profile.usual_pace_s(own_s, self.facts.pace_s, neighbors_s)

    def _note(self, pace_s: float) -> None:
        before = self.own_s
        self.own_s = pace_s if before is None else (1 - NEWEST) * before + NEWEST * pace_s
        gained = self.own_s - (before or 0.0)
        self.facts.pace_s = self.settings.profile.told_pace_s(self.own_s, gained, self.facts.pace_s)


@dataclass(slots=True, eq=False, repr=False)
class Training:
    """One node's training; rounds and time taken over from others count as its own."""

    facts: Facts
    settings: Settings
    pace: Pace
    elapsed_before_s: float
    """How long the node had trained before this process started, in seconds."""
    began_at: float | None = None
    """When training began in this process."""
    taken_over: int = 0
    """How many rounds the node took over from others."""
    round_from: float = 0.0
    """When the latest round began."""
    accompanied: bool = True
    """True if a neighbor was connected when the current round began."""
    failed_rounds: int = 0
    best: Best | None = None
    """The best figure of the node's rounds, if early stopping watches one."""
    refused_until: float = 0.0
    """The time before which a refused round is not retried."""
    through_rounds: int | None = None
    """How many rounds the node had to train, once it is through."""
    through_s: float = 0.0
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
        self.pace.begin(now)
        self.round_from = now
        self.accompanied = accompanied

    def take_over(self, rounds: int | None, elapsed_s: float | None) -> None:
        """Continue from the progress of the neighbors whose model this node has taken; None keeps this node's own
        count.
        """
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

    def note_through(self, now: float, *, through: bool) -> None:
        """Note whether the node is through. Where `rounds` end training, those beyond them count through a restart."""
        if not through:
            self.through_rounds = None
        elif self.through_rounds is None:
            self.through_rounds = min(self.facts.rounds, self.settings.rounds or self.facts.rounds)
            self.through_s = self.elapsed_s(now)

    def next_at(self, now: float) -> float:
        """Return when a node that is through may train another round; NEVER if it only mixes from now on."""
        asked, how = self.through_rounds, self.settings.when_through
        if self.out_of_budget or how == "mix":
            return NEVER
        if how == "train-on" or asked is None:
            return now
        multiple = begins_beyond(self.facts.rounds - asked + 1, asked)
        return NEVER if multiple == NEVER else now + max(0.0, self.through_s * multiple - self.elapsed_s(now))

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
