"""The rate rho by which a node that takes more rounds than others moves less in each."""

from __future__ import annotations

from p2pfl.core.facts import Facts, Settings
from p2pfl.core.mixing import Mixing

NEWEST = 0.2
"""the weight of the latest round in the own pace."""


class Pace:
    """`from_` is when the round under way began, or the one before ended; `own_s` seconds per local step."""

    def __init__(self, facts: Facts, settings: Settings, mixing: Mixing) -> None:
        self.facts = facts
        self.settings = settings
        self.mixing = mixing
        self.from_: float | None = None
        self.own_s: float | None = None

    def begin(self, now: float) -> None:
        if self.from_ is None:
            self.from_ = now

    def correction(self, steps: int, waited_s: float, now: float) -> float:
        """Rho = clip((T_i/T_ref)(H_ref/H_i), 1/kmax, kmax) for a round of so many steps that ends now, and has waited
        for its turn.
        """
        if self.from_ is not None and steps > 0:
            self._note((now - self.from_ - waited_s) / steps)
        self.from_ = now
        limit, own_s = self.settings.speed_limit, self.own_s
        if limit <= 1.0 or not self.facts.pace_s or not own_s:
            return 1.0
        robust = self.settings.liars is not None
        usual_s = self.mixing.usual_pace_s(own_s) if robust else self.facts.pace_s
        return min(limit, max(1.0 / limit, own_s / usual_s))

    def _note(self, pace_s: float) -> None:
        """What is told is the mixed estimate, by dynamic average consensus: what the own figure gained enters it. In
        the robust profile nothing is mixed, and everybody tells its own.
        """
        before = self.own_s
        self.own_s = pace_s if before is None else (1 - NEWEST) * before + NEWEST * pace_s
        gained = self.own_s - (before or 0.0)
        self.facts.pace_s = self.own_s if self.settings.liars is not None else max(0.0, self.facts.pace_s + gained)
