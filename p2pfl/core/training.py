"""The own training: how many rounds, how long, and how far a node with more or fewer rounds than others moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from p2pfl.core.early_stopping import Best
from p2pfl.core.edge import Edge
from p2pfl.core.facts import Facts
from p2pfl.core.settings import Settings

NEWEST = 0.2
"""The weight of the latest round in the own pace."""


@dataclass(slots=True, eq=False, repr=False)
class Pace:
    """The own pace, `own_s`: seconds per local step. `from_`: when the current round began, or the one before ended."""

    edges: Mapping[int, Edge]
    facts: Facts
    settings: Settings
    from_: float | None = None
    own_s: float | None = None

    def begin(self, now: float) -> None:
        if self.from_ is None:
            self.from_ = now

    def correction(self, steps: int, waited_s: float, now: float) -> float:
        """Rho = clip((T_i/T_ref)(H_ref/H_i), 1/kmax, kmax) of a round that ends now and had to wait for its turn."""
        if self.from_ is not None and steps > 0:
            self._note((now - self.from_ - waited_s) / steps)
        self.from_ = now
        limit, own_s = self.settings.speed_limit, self.own_s
        if limit <= 1.0 or not self.facts.pace_s or not own_s:
            return 1.0
        return min(limit, max(1.0 / limit, own_s / self.usual_s(own_s)))

    def usual_s(self, own_s: float) -> float:
        """The pace that the own one is compared with: seconds per local step."""
        open_edges = (edge.exchange.weighing for edge in self.edges.values() if edge.is_open)
        neighbors_s = (weighing.told.pace_s for weighing in open_edges if weighing.told)
        return self.settings.profile.usual_pace_s(own_s, self.facts.pace_s, neighbors_s)

    def _note(self, pace_s: float) -> None:
        before = self.own_s
        self.own_s = pace_s if before is None else (1 - NEWEST) * before + NEWEST * pace_s
        gained = self.own_s - (before or 0.0)
        self.facts.pace_s = self.settings.profile.told_pace_s(self.own_s, gained, self.facts.pace_s)


@dataclass(slots=True, eq=False, repr=False)
class Training:
    """The training of one node; rounds and time taken over from others count as if they were its own."""

    facts: Facts
    settings: Settings
    pace: Pace
    elapsed_before_s: float
    """The seconds that it had trained before this process."""
    began_at: float | None = None
    """The time at which training began in this process."""
    taken_over: int = 0
    """The number of its rounds that it took over from others."""
    round_from: float = 0.0
    """The time at which the latest round began."""
    accompanied: bool = True
    """True if a neighbor was there when the round under way began."""
    failed_rounds: int = 0
    best: Best | None = None
    """The best figure of its rounds, where one must improve."""
    refused_until: float = 0.0
    """The time before which a refused round is not tried again."""
    out_of_budget: str = ""
    """The reason why no more may be trained, even if rounds are left; empty: more may be."""

    def begin(self, now: float) -> bool:
        """Note the start of training; True only the first time."""
        if self.began_at is not None:
            return False
        self.began_at = now
        return True

    def begin_round(self, now: float, *, accompanied: bool) -> None:
        self.pace.begin(now)
        self.round_from = now
        self.accompanied = accompanied

    def take_over(self, rounds: int | None, elapsed_s: float | None) -> None:
        """Go on counting where the neighbors are, whose model this node has taken; None: where it was."""
        self.best = None
        if rounds is not None:
            self.taken_over = rounds - self.facts.rounds
            self.facts.rounds = self.facts.trained = rounds
        if elapsed_s is not None:
            self.elapsed_before_s, self.facts.trained = elapsed_s, int(elapsed_s)

    def look_at(self, figure: float | None) -> None:
        """Take the figure of the round just trained. After the patience has run out, none changes anything."""
        stop, rounds = self.settings.stop, self.facts.rounds
        if stop is None or figure is None or stop.is_out(self.best, rounds):
            return
        if stop.is_better(figure, self.best):
            self.best = Best(figure, rounds + 1)

    def enough(self, now: float) -> str | None:
        """The reason why this node has trained all that it had to, or may; None: it has not."""
        settings = self.settings
        if self.out_of_budget:
            return self.out_of_budget
        if settings.rounds is not None and self.facts.rounds >= settings.rounds:
            return f"{settings.rounds} rounds are done"
        if settings.rounds is None and self.elapsed_s(now) >= (settings.time_s or 0.0):
            return f"it has trained for {settings.time_s or 0.0:g} s"
        stop = settings.stop
        return None if stop is None else stop.why(self.best, self.facts.rounds, self.elapsed_s(now))

    @property
    def goes_on(self) -> bool:
        """True if a node that is through trains until the federation ends; else it only mixes."""
        return self.settings.overtime and not self.out_of_budget

    def elapsed_s(self, now: float) -> float:
        """The seconds trained; rounds that were taken over are assumed to have been as long as the own ones."""
        elapsed_s = self.elapsed_before_s + (0.0 if self.began_at is None else now - self.began_at)
        if not self.taken_over:
            return elapsed_s
        return elapsed_s * self.facts.rounds / max(1, self.facts.rounds - self.taken_over)

    def note(self, now: float) -> None:
        """Update the progress that is told to others."""
        in_rounds = self.settings.rounds is not None
        self.facts.trained = self.facts.rounds if in_rounds else int(self.elapsed_s(now))
