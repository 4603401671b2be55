"""Follow the losses of a node, and tell why one of them grows.

The loss on the common test set grows for several reasons, and only some of them are anybody's fault. A model that
learns its own rows by heart fits these better and better; a model that is driven away, by steps that are too long or by
a neighbor that lies, fits them worse as well. So the loss of the node's own rounds tells the two apart. With noise for
privacy that loss is private, and noise alone explains the growth.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

WINDOW = 10
"""Rounds over which the median of a loss is taken: single ones say little."""
GROWN = 1.25
"""A loss has grown if it is this many times its best, and SHARE above it."""
SHARE = 0.1
"""The growth must be at least this share of the first loss: close to zero a factor means nothing."""
FOLLOWS = 0.25
"""The own rounds' loss has grown with that of the tests if it has grown by this share of the tests' growth."""
DIVERGED = 10.0
"""Without tests the own rounds' loss counts as grown if it is this many times that of the untrained model."""

DRIVEN, OVERFITTED, NOISY = "driven", "overfitted", "noisy"
"""The reasons for a growing loss on the common test set: something drives the model away from where it fits, its own
rows too; it fits its own rows better meanwhile; there is noise for privacy.
"""


class Growth(NamedTuple):
    """A loss that has grown: the reason, and the growth in words. `is_lost`: an untrained model's is lower."""

    reason: str
    text: str
    is_lost: bool


@dataclass(slots=True)
class Trend:
    """The losses of one model during training: medians of the latest ones, at first and at best."""

    latest: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    untrained: float | None = None
    """The very first loss."""
    first: float | None = None
    best: float = float("inf")

    def note(self, loss: float) -> bool:
        """Note a loss; return whether it is now at its best."""
        self.untrained = loss if self.untrained is None else self.untrained
        self.latest.append(loss)
        if len(self.latest) < WINDOW:
            return True
        now = self.now
        self.first = now if self.first is None else self.first
        is_best = now <= self.best
        self.best = min(self.best, now)
        return is_best

    def forget(self) -> None:
        """Forget the losses of earlier data, with which new ones do not compare."""
        self.latest.clear()
        self.first, self.best = None, float("inf")

    @property
    def now(self) -> float:
        """The median of the latest losses."""
        return median(self.latest)

    @property
    def has_grown(self) -> bool:
        if self.first is None:
            return False
        now = self.now
        return now > GROWN * self.best and now - self.best > SHARE * self.first


@dataclass(slots=True)
class Losses:
    """The losses of a node: `own` are those of the local rounds, `tests` those on the common test set. `private`:
    rounds have noise.
    """

    private: bool = False
    own: Trend = field(default_factory=Trend)
    tests: Trend = field(default_factory=Trend)
    own_at_best: float | None = None
    """The loss of the node's own rounds when the test loss was at its best."""

    def trained(self, loss: float) -> None:
        self.own.note(loss)

    def tested(self, loss: float) -> None:
        if self.tests.note(loss) and self.own.latest:
            self.own_at_best = self.own.now

    def forget(self) -> None:
        """Forget the losses of earlier data."""
        self.own.forget()
        self.tests.forget()
        self.own_at_best = None

    @property
    def growth(self) -> Growth | None:
        """Describe the loss that has grown; None: none has.

        The loss of the own rounds grows also where nodes with unlike data come to agree. So where there is a common
        test set it only explains why the test loss has grown; else it counts once it is far above that of the untrained
        model.
        """
        if self.tests.latest:
            if not self.tests.has_grown:
                return None
            text = f"the loss on the common test set is {self.tests.now:.3g}, after {self.tests.best:.3g} at its best"
            return Growth(self._reason(), text, is_lost=self.tests.now > (self.tests.untrained or 0.0))
        own = self.own
        if self.private or own.untrained is None or not own.has_grown or own.now <= DIVERGED * own.untrained:
            return None
        text = f"the loss of the latest rounds is {own.now:.3g}, after {own.best:.3g} at its best"
        return Growth(DRIVEN, text, is_lost=True)

    def _reason(self) -> str:
        if self.private:
            return NOISY
        if self.own_at_best is None or not self.own.latest:
            return DRIVEN
        follows = self.own.now - self.own_at_best > FOLLOWS * (self.tests.now - self.tests.best)
        return DRIVEN if follows else OVERFITTED
