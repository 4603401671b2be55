"""The settings of a core. The federation may change them between two rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from p2pfl.core.early_stopping import Stop
from p2pfl.core.profiles import Conservative, Profile
from p2pfl.core.staleness import Staleness


@dataclass(slots=True, kw_only=True)
class Settings:
    """The settings of a core. Times are in seconds. Either `rounds` or `time_s` bounds training; the other is None.

    A core has its own copy, shared by its parts; only `adopt` changes it.
    """

    rounds: int | None
    time_s: float | None
    closing_rounds: int
    profile: Profile = field(default_factory=Conservative)
    """The profile, which says how far the neighbors are trusted."""
    staleness: Staleness
    """The weight of an exchange as a function of the rounds since the neighbor last received this node's model."""
    speed_limit: float
    """The largest factor by which a slow node's step is scaled up, kmax; 1 turns that correction off."""
    start_wait_s: float
    linger_s: float
    max_wait_s: float
    exchanges_per_s: float
    members: int = 1 << 20
    """The number of members that the federation has or had: one more than the largest index."""
    retired: frozenset[int] = frozenset()
    """The members that were removed."""
    hops: int = 1
    """The number of hops to the farthest node; all nodes within this range should be connected before the first
    round.
    """
    fragments: Mapping[int, int] = field(default_factory=dict)
    """The neighbors whose edges have no replicas, and the number of exchanges in which they show a whole model."""
    audit_every: int
    """One in this many exchanges compares the replicas at both ends."""
    stop: Stop | None = None
    """The conditions under which this node's training may end early."""
    when_through: str = "train"
    """The behavior of a node that is through while others are not: `mix`, `train` a few more or `train-on`."""

    def adopt(self, other: Settings) -> None:
        """Take over all values of another instance."""
        for each in fields(self):
            setattr(self, each.name, getattr(other, each.name))
