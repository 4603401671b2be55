"""The end of a federation: all nodes stop together, by a rule that each applies to its own `census`.

A node that is through goes on as a full member; otherwise the nodes that still train would pull the common model to
their own data. All nodes stop training, each at the end of a round,
- when every member that has begun is through, and so are the connected neighbors;
- or, once half of the members that have begun are through, after `linger_s` or a quarter of the node's own training
  time, whichever is longer;
- or, where fewer than half are through, when a node that is through has seen no progress of others for that long, or
  has gone on for fifty times as long as it had trained;
- or when every connected neighbor has stopped; a node that is not through does not count neighbors that plan fewer
  rounds.

A node that this rule stops is not through; otherwise one early end would run around a ring. On a sparse graph a node
knows little about distant members: so with a robust rule *half* means half of all members. The rule never waits for
removed members.
"""

from __future__ import annotations

import enum

from p2pfl.core.census import Census
from p2pfl.core.settings import Settings

TRAINING_SHARE = 0.25
"""The share of its own training time for which a node waits for members that are slower or gone."""
LONGEST_MULTIPLE = 50.0
"""The multiple of its own training time for which a node that is through goes on: enough for fiftyfold speeds."""
ROUNDS_OF_SILENCE = 3.0
"""The number of its own rounds that a neighbor may miss before it counts as silent."""


class Reason(enum.StrEnum):
    """The reason why training has ended."""

    ALL = "everybody who had begun was through"
    COMPANY = "everybody who took part was through"
    HALF = "half of those who had begun were through, and had waited for the others"
    SILENCE = "nobody else made progress any longer"
    LONG = "it had gone on for fifty times as long as it had trained"
    NEIGHBORS = "every neighbor that was there had stopped training"


class Ending:
    """The rule, as one node applies it.

    `ended_by` is the reason why this node has stopped training; None: it has not.
    """

    def __init__(self, census: Census, settings: Settings) -> None:
        self.census = census
        self.settings = settings
        self.ended_by: Reason | None = None

    @property
    def is_through(self) -> bool:
        """True if this node has done all the training it had to."""
        return self.census.is_through

    def unfinished(self, training: int, out: int) -> int:
        """Return the members, as a set of bits, that are not through yet.

        `training` holds the connected neighbors that have not stopped; those that have yet to begin count too. `out`
        holds the neighbors in quarantine, which nobody waits for.
        """
        census = self.census
        return (census.begun | training) & census.counted & ~census.through & ~out

    def over(self, now: float, *, trained_s: float, unfinished: int, stopped: bool) -> Reason | None:
        """Return the reason to stop now, at the end of a round, after `trained_s` of training; None: the node goes on.

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
        """Return True if enough neighbors make progress: each showed a new version within `wait_s`, or within a few of
        its rounds.
        """
        moving = sum(
            claims.progress_at is not None
            and now < claims.progress_at + max(wait_s, ROUNDS_OF_SILENCE * claims.round_s)
            for claims in self.census.claims.values()
        )
        return moving >= self.settings.profile.words_needed
