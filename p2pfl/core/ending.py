"""When a federation ends: together, by a rule that each node can apply to what it has heard (`census`).

A node that is through goes on as a full member, or those that still train would drag the common model to their own
data. All stop training, each at the end of a round,

- when everybody who has begun is through, and the neighbors that are there are;
- or, once half of those are through, after `linger_s` or a quarter of the own training time, whichever is longer;
- or, where less than half are, when a node that is through has heard of nobody else's progress for that long, or has
  gone on for fifty times as long as it had trained;
- or when every neighbor that is there has stopped; a node that is not through does not count those who know of fewer
  rounds to do.

A node that was stopped by this is not through, or one early end would run around a ring. On a sparse graph little is
known of those far away: with a robust rule half of all members is meant there. Nobody waits for members who were
removed.
"""

from __future__ import annotations

import enum

from p2pfl.core.census import Census
from p2pfl.core.settings import Settings

TRAINING_SHARE = 0.25
"""The share of its own training time for which a node waits for members that are slower or gone."""
LONGEST_MULTIPLE = 50.0
"""A node that is through goes on for this many times its own training time: enough for fiftyfold speeds."""
ROUNDS_OF_SILENCE = 3.0
"""A neighbor whose rounds are long is not silent before it has let so many of them pass."""


class Reason(enum.StrEnum):
    """Why training has ended."""

    ALL = "everybody who had begun was through"
    COMPANY = "everybody who took part was through"
    HALF = "half of those who had begun were through, and had waited for the others"
    SILENCE = "nobody else made progress any longer"
    LONG = "it had gone on for fifty times as long as it had trained"
    NEIGHBORS = "every neighbor that was there had stopped training"


class Ending:
    """The rule, as one node applies it; `ended_by` is why this node has stopped training, None: it has not."""

    def __init__(self, census: Census, settings: Settings) -> None:
        self.census = census
        self.settings = settings
        self.ended_by: Reason | None = None

    @property
    def is_through(self) -> bool:
        """Whether this node has trained all that it had to."""
        return self.census.is_through

    def unfinished(self, training: int, out: int) -> int:
        """The members, as a set of bits, that have yet to be through.

        `training` are the neighbors that are there and have not stopped: who has yet to begin is waited for as well.
        `out` are those in quarantine, for which nobody waits.
        """
        census = self.census
        return (census.begun | training) & census.counted & ~census.through & ~out

    def over(self, now: float, *, trained_s: float, unfinished: int, stopped: bool) -> Reason | None:
        """Why a node that has trained for so long stops now, at the end of a round; None: it goes on.

        `stopped`: there are neighbors, and none of them still trains.
        """
        census = self.census
        if census.through & census.counted and not unfinished:
            return Reason.ALL
        if stopped:
            return Reason.NEIGHBORS
        wait_s = self.wait_s(trained_s)
        if census.half_at is not None and now >= census.half_at + wait_s:
            return Reason.HALF
        if not census.is_through or census.through_at is None:
            return None
        if now >= census.new_at + wait_s and not self._is_progress(now, wait_s):
            return Reason.SILENCE
        since_s = now - census.through_at
        return Reason.LONG if since_s >= max(wait_s, LONGEST_MULTIPLE * (trained_s - since_s)) else None

    def wait_s(self, trained_s: float) -> float:
        return max(self.settings.linger_s, TRAINING_SHARE * trained_s)

    def _is_progress(self, now: float, wait_s: float) -> bool:
        """Whether enough neighbors go on to be believed: by a new version in that time, or in a few own rounds."""
        moving = sum(
            claims.progress_at is not None
            and now < claims.progress_at + max(wait_s, ROUNDS_OF_SILENCE * claims.round_s)
            for claims in self.census.claims.values()
        )
        return moving >= self.settings.profile.words_needed
