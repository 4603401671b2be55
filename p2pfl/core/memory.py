"""The memory of one node's core on disk: the state from which it goes on after a restart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from p2pfl.core.early_stopping import Best
from p2pfl.core.lives import Life
from p2pfl.core.records import EdgeRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The state from which a core starts. `fresh`: the disk is empty. The counts are those of `Facts` and `Training`.

    `records` and `lives` are by peer; the core changes the records, which belong to it alone.
    """

    fresh: bool = True
    version: int = 0
    rounds: int = 0
    elapsed_s: float = 0.0
    """The seconds that the node has trained."""
    alone: int = 0
    best: Best | None = None
    ended: bool = False
    """True if the federation is over for this node, which only answers late neighbors."""
    records: Mapping[int, EdgeRecord] = field(default_factory=dict)
    lives: Mapping[int, Life] = field(default_factory=dict)


NO_MEMORY = Memory()
"""The memory of a node that starts for the first time."""
