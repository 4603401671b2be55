"""When a node tests its model: every so many rounds, or as often as a bounded share of its time allows.

A test reads the whole common test set, so with short rounds it may take as long as the round itself.
"""

from __future__ import annotations

from collections import deque

from p2pfl.config.model import EvaluateEvery
from p2pfl.config.tables import AUTO

TEST_SHARE = 0.1
"""With `evaluate_every = "auto"`, tests take at most this share of the seconds that rounds take."""
COMPARED = 3
"""A test's cost is the least of so many latest tests: the first one also loads code, and others may be interrupted."""
FIRST_TESTS = 2
"""So many tests come with the first rounds: only after the second is the cost of a test known."""


class EvaluationPace:
    """Decides after which rounds a node tests its model; it reads no clock.

    With `each_round`, `"auto"` tests after every round: the stop condition counts rounds by what tests find.
    """

    def __init__(self, every: EvaluateEvery, *, each_round: bool = False) -> None:
        self._every = 1 if every == AUTO and each_round else every
        self._costs_s: deque[float] = deque(maxlen=COMPARED)
        self._worked_s = 0.0
        """The seconds that rounds have taken since the latest test."""
        self._mixed_at: float | None = None

    @property
    def usual_rounds(self) -> int:
        """The rounds that may pass between two tests without the older one counting as outdated."""
        return 1 if isinstance(self._every, str) else max(1, self._every)

    def worked(self, seconds: float) -> None:
        """Count the time of a local round."""
        self._worked_s += seconds

    def mixed(self, now: float) -> None:
        """Count the time since the last call, in which only neighbors moved the model, as that of rounds."""
        if self._mixed_at is not None:
            self._worked_s += now - self._mixed_at
        self._mixed_at = now

    def begin(self) -> None:
        """Start the time until the next test, although this one has to wait for the learner."""
        self._worked_s = 0.0

    def tested(self, seconds: float) -> None:
        """Count a test, and start the time until the next one."""
        self._costs_s.append(seconds)
        self._worked_s = 0.0

    def is_due(self, version: int) -> bool:
        """Return True if the model of this version is to be tested now."""
        if not isinstance(self._every, str):
            return self._every > 0 and version % self._every == 0
        return len(self._costs_s) < FIRST_TESTS or self._worked_s * TEST_SHARE >= min(self._costs_s)
