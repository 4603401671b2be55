"""The seam between a host and its data plane: the same core runs over either of two engines.

`exact` is the shipped engine, one operation at a time; `lazy` only remembers what is to be done and does it later, for
many nodes at once. Both answer the core alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from p2pfl.core.effects import Operation
from p2pfl.core.events import Event
from p2pfl.core.lives import Life, Start
from p2pfl.core.records import EdgeRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """What the disk says at a start; `records` and `lives` belong to the core alone."""

    fresh: bool
    samples: int
    version: int
    rounds: int
    elapsed_s: float
    alone: int
    start: Start
    lives: dict[int, Life]
    records: Mapping[int, EdgeRecord]


class NodeEngine(Protocol):
    """One node's data plane as its host sees it."""

    def boot(self, name: int) -> Boot:
        """Start, from the disk or from nothing; `name` is a random one for the process, and for a life that begins."""

    def run(self, operation: Operation) -> Event | None:
        """Carry out what the core asks; the answer for the core, if there is one."""

    def begin_round(self, index: int, *, accompanied: bool) -> None:
        """Remember what the local round starts with, as it is now. `accompanied`: a neighbor is there."""

    def end_round(self) -> tuple[int, int]:
        """The local round that began is over: its number of steps (0 if it failed), and n."""

    def sketch(self, tick: int) -> None:
        """Note where the model is, in closing round `tick`."""

    def crash(self, kept: int = 0) -> None:
        """Power off: what was not flushed is lost, apart from the first `kept` changes, which reached the disk."""

    def forget(self) -> None:
        """The disk is lost: the node is as before its first start."""
