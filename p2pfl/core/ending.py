"""The end of a federation: all nodes stop together, by a rule that each applies to its own `census`.

A node that is through answers its neighbors and trains a few rounds more, spread over the wait (`Training.next_at`);
otherwise the nodes still training would pull the common model toward their own data. Every node stops training, at the
end of a round, in any of these cases:
- every member that has begun is through, and so are the connected neighbors;
- half of the members that have begun have been through for `linger_s`, or for a quarter of the node's own training
  time if that is longer;
- fewer than half are through, this node is one of them, and it has seen no progress in others for that long, or has
  gone on for fifty times as long as it trained;
- every connected neighbor has stopped; a node that is not through ignores neighbors that plan fewer rounds.

A node stopped by this rule is not through; otherwise one early end would run around a ring. On a sparse graph a node
knows little about distant members, so with a robust rule *half* means half of all members. The rule never waits for
removed members.
"""

from __future__ import annotations

import enum

from p2pfl.core.census import Census
from p2pfl.core.settings import Settings

TRAINING_SHARE = 0.25
"""How long a node waits for members that are slower or gone, as a fraction of its own training time."""
LONGEST_MULTIPLE = 50.0
"""How long a node that is through goes on, as a multiple of its own training time: enough for fiftyfold speeds."""
ROUNDS_OF_SILENCE = 3.0
"""The number of its own rounds that a neighbor may miss before it counts as silent."""


class Reason(enum.StrEnum):
    """Why training ended."""

    ALL = "everybody who had begun was through"
    COMPANY = "everybody who took part was through"
    HALF = "half of those who had begun were through, and had waited for the others"
    SILENCE = "nobody else made progress any longer"
    LONG = "it had gone on for fifty times as long as it had trained"
    NEIGHBORS = "every neighbor that was there had stopped training"


class Ending:
    """The rule, as applied by one node.

    `ended_by` is the reason why this node has stopped training; None if it has not.
    """

    def __init__(self, census: Census, settings: Settings) -> None:
        self.census = census
        self.settings = settings
        self.ended_by: Reason | None = None

    @property
    def is_through(self) -> bool:
        """True if this node has done all its own training."""
        return self.census.is_through

    def unfinished(self, training: int, out: int) -> int:
        """Return the bitmap of members that are not through yet.

        `training` holds the connected neighbors that have not stopped; members that have yet to begin count too. `out`
        holds the neighbors in quarantine, which no node waits for.
        """
        census = self.census
        return (census.begun | training) & census.counted & ~census.through & ~out

    def over(self, now: float, *, trained_s: float, unfinished: int, stopped: bool) -> Reason | None:
        """Return the reason to stop now, at the end of a round, after `trained_s` of training; None to go on.

        `stopped` says that there are neighbors and none of them still trains.
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
        """Return True if enough neighbors are making progress: each has shown a new version within `wait_s`, or within
        a few of its rounds.
        """
        moving = sum(
            claims.progress_at is not None
            and now < claims.progress_at + max(wait_s, ROUNDS_OF_SILENCE * claims.round_s)
            for claims in self.census.claims.values()
        )
        return moving >= self.settings.profile.words_needed
