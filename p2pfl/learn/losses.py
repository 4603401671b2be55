"""Track a node's losses, and find out why one of them grows.

The loss on the common test set can grow for several reasons, and not all of them are somebody's fault. An overfitted
model fits its own rows better and better. A model that diverges, because steps are too long or a neighbor lies, fits
its own rows worse as well. So the loss of the node's own rounds distinguishes the two. With privacy noise that loss is
private, and the noise alone explains the growth.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

WINDOW = 10
"""The window, in rounds, for the median of a loss: single values are too noisy."""
GROWN = 1.25
"""A loss counts as grown if it is at least this many times its best, and exceeds it by SHARE."""
SHARE = 0.1
"""The growth must be at least this share of the first loss: near zero, a ratio means nothing."""
FOLLOWS = 0.25
"""The loss of the node's own rounds counts as grown too if it has grown by at least this share of the test loss's
growth.
"""
DIVERGED = 10.0
"""Without tests, the loss of the node's own rounds counts as grown if it is this many times that of the untrained
model.
"""

DRIVEN, OVERFITTED, NOISY = "driven", "overfitted", "noisy"
"""The reasons for a growing loss on the common test set. Driven: something pushes the model away from where it fits, so
that it fits its own rows worse too. Overfitted: it fits its own rows better. Noisy: there is noise for privacy.
"""


class Growth(NamedTuple):
    """A loss that has grown: the reason, and a description. `is_lost` is True if an untrained model has a lower
    loss.
    """

    reason: str
    text: str
    is_lost: bool


@dataclass(slots=True)
class Trend:
    """The losses of one model during training: medians over WINDOW rounds, of which `first` and `best` are kept."""

    latest: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    untrained: float | None = None
    """The very first loss."""
    first: float | None = None
    best: float = float("inf")

    def note(self, loss: float) -> bool:
        """Record a loss; return True if this is the best so far."""
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
        """Forget the losses on earlier data, which are not comparable with new ones."""
        self.latest.clear()
        self.first, self.best = None, float("inf")

    @property
    def now(self) -> float:
        """Return the median of the latest losses."""
        return median(self.latest)

    @property
    def has_grown(self) -> bool:
        if self.first is None:
            return False
        now = self.now
        return now > GROWN * self.best and now - self.best > SHARE * self.first


@dataclass(slots=True)
class Losses:
    """The losses of a node: `own` from its local rounds, `tests` on the common test set. `private` is True if rounds
    have noise, `resumed` if the node goes on with a model, so that the first loss is not that of an untrained one.
    """

    private: bool = False
    resumed: bool = False
    own: Trend = field(default_factory=Trend)
    tests: Trend = field(default_factory=Trend)
    own_at_best: float | None = None
    """The loss of the node's own rounds when the test loss was at its best."""

    def trained(self, loss: float) -> None:
        self.own.note(loss)
        if self.own_at_best is None and self.tests.latest:
            self.own_at_best = self.own.now  # the best test so far came before the first round of this process

    def tested(self, loss: float) -> None:
        if self.tests.note(loss) and self.own.latest:
            self.own_at_best = self.own.now

    def forget(self) -> None:
        """Forget the losses on earlier data."""
        self.own.forget()
        self.tests.forget()
        self.own_at_best = None

    @property
    def growth(self) -> Growth | None:
        """Describe the loss that has grown; return None if none has.

        The loss of a node's own rounds also grows when nodes with different data converge. So if there is a common test
        set, that loss only explains why the test loss has grown. Without one, it counts once it is far above the
        untrained model's loss.
        """
        if self.tests.latest:
            if not self.tests.has_grown:
                return None
            text = f"the loss on the test rows is {self.tests.now:.3g}, after {self.tests.best:.3g} at its best"
            is_lost = not self.resumed and self.tests.now > (self.tests.untrained or 0.0)
            return Growth(self._reason(), text, is_lost=is_lost)
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
