"""The end of a federation: all stop together, by a rule that each node applies to what it has been told (`census`).

A node that is through goes on as a full member; otherwise those that still train would drag the common model to their
own data. All stop training, each at the end of a round,

- when everybody who has begun is through, and the neighbors that are there are;
- or, once half of those are through, after `linger_s` or a quarter of the own training time, whichever is longer;
- or, where less than half are, when a node that is through has seen nobody else's progress for that long, or has
  gone on for fifty times as long as it had trained;
- or when every neighbor that is there has stopped; a node that is not through does not count those who know of fewer
  rounds to do.

A node that this rule stops is not through; otherwise one early end would run around a ring. On a sparse graph a node
knows little about those far away: so with a robust rule *half* means half of all members. Nobody waits for removed
members.
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
"""The number of its own rounds that a neighbor may let pass before it counts as silent."""


class Reason(enum.StrEnum):
    """The reason why training has ended."""

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
        """True if this node has done all the training it had to."""
        return self.census.is_through

    def unfinished(self, training: int, out: int) -> int:
        """The members, as a set of bits, that have yet to be through.

        `training`: the neighbors that are there and have not stopped; those that have yet to begin count too.
        `out`: those in quarantine, for which nobody waits.
        """
        census = self.census
        return (census.begun | training) & census.counted & ~census.through & ~out

    def over(self, now: float, *, trained_s: float, unfinished: int, stopped: bool) -> Reason | None:
        """The reason to stop now, at the end of a round, after `trained_s` of training; None: the node goes on.

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
        """True if enough neighbors make progress: each a new version within `wait_s`, or within a few of its rounds."""
        moving = sum(
            claims.progress_at is not None
            and now < claims.progress_at + max(wait_s, ROUNDS_OF_SILENCE * claims.round_s)
            for claims in self.census.claims.values()
        )
        return moving >= self.settings.profile.words_needed
