"""The own training: how many rounds, how long, and at what rate."""

from __future__ import annotations

from p2pfl.core.facts import Facts
from p2pfl.core.pace import Pace
from p2pfl.core.settings import Settings


class Training:
    """Of one node; rounds and time that are taken over from others count as if they were the own."""

    def __init__(self, facts: Facts, settings: Settings, pace: Pace, *, elapsed_before_s: float) -> None:
        self.facts = facts
        self.settings = settings
        self.pace = pace
        self.elapsed_before_s = elapsed_before_s
        """How long it had trained before this process."""
        self.began_at: float | None = None
        """When training began in this process."""
        self.taken_over = 0
        """How many of its rounds it took over from others."""
        self.round_from = 0.0
        """When the latest round began."""
        self.accompanied = True
        """Whether a neighbor was there when the round under way began."""
        self.failed_rounds = 0

    def begin(self, now: float) -> bool:
        """True the first time."""
        if self.began_at is not None:
            return False
        self.began_at = now
        return True

    def begin_round(self, now: float, *, accompanied: bool) -> None:
        self.pace.begin(now)
        self.round_from = now
        self.accompanied = accompanied

    def take_over(self, rounds: int | None, elapsed_s: float | None) -> None:
        """The model is the neighbors' now, and where they are this node goes on counting; None: where it was."""
        if rounds is not None:
            self.taken_over = rounds - self.facts.rounds
            self.facts.rounds = self.facts.trained = rounds
        if elapsed_s is not None:
            self.elapsed_before_s, self.facts.trained = elapsed_s, int(elapsed_s)

    def is_enough(self, now: float) -> bool:
        if self.settings.rounds is not None:
            return self.facts.rounds >= self.settings.rounds
        return self.elapsed_s(now) >= (self.settings.time_s or 0.0)

    def elapsed_s(self, now: float) -> float:
        """The time trained; where rounds were taken over, they are taken to have been as long as the own ones."""
        elapsed_s = self.elapsed_before_s + (0.0 if self.began_at is None else now - self.began_at)
        if not self.taken_over:
            return elapsed_s
        return elapsed_s * self.facts.rounds / max(1, self.facts.rounds - self.taken_over)

    def note(self, now: float) -> None:
        """Count what is told to others of the training so far."""
        in_rounds = self.settings.rounds is not None
        self.facts.trained = self.facts.rounds if in_rounds else int(self.elapsed_s(now))
